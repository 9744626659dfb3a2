// Building blocks of all figures: SVG frames, labels, legends, readable text on colors, matrices, token tables, and downloads.

import { html, svg } from "./dom.js";

const CHARACTER_WIDTH = 7.2; // pixels, approximately
const ROW_HEIGHT = 34; // pixels, of a token table

/** Create an empty figure; its size in pixels scales with the font size of the page. */
export function figureSvg(width, height, title, description) {
  const figure = svg("svg", { class: "picture", viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, role: "img", "aria-label": description ? `${title}: ${description}` : title });
  figure.style.width = `${Math.ceil(width) / 16}rem`;
  figure.style.height = `${Math.ceil(height) / 16}rem`;
  return figure;
}

/**
 * Create a figure with heading, note, download buttons, a scrollable area and a legend. `data()` returns the JSON to download.
 * The files also contain the title, the run, the sentence and the legend.
 */
export function framedFigure(heading, note, content, fileName, data, extras = [], legend = null) {
  const button = (format, save) => html("button", { type: "button", "aria-label": `Download “${heading}” as ${format}`, title: `Download as ${format}`, click: (event) => save(event.target.closest("figure")) }, format);
  const titled = (figure) => ({ figure: content, heading, note, legend, origin: originOf(figure) });
  const buttons = html("div", { class: "saving" },
    button("SVG", (figure) => saveSvg(titled(figure), `${fileName}.svg`)),
    button("PNG", (figure) => savePng(titled(figure), `${fileName}.png`)),
    button("JSON", () => download(new Blob([JSON.stringify(data(), null, 1)], { type: "application/json" }), `${fileName}.json`)));
  return html("figure", {},
    html("figcaption", {}, html("div", {}, html("h3", {}, heading), note ? html("p", { class: "muted" }, note) : null), buttons),
    html("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": heading }, content),
    legend && html("div", { class: "figure-legend" }, legend),
    ...extras);
}

/** Return the run and the sentence of a figure, for the files. */
function originOf(figure) {
  const { run, sentence, translation } = figure.closest("[data-run]")?.dataset ?? {};
  return [run && `run: ${run}`, [sentence, translation].filter(Boolean).join(" → ")].filter(Boolean);
}

/** Draw a legend: swatches with texts. Entries are {text, shape}, where shape(x, y) returns SVG elements of 16 by 12 pixels. */
export function swatchLegend(entries) {
  let x = 2;
  const parts = entries.flatMap(({ text, shape }) => {
    const at = x;
    x += 26 + 1.05 * labelWidth([text], 60) + 18;
    return [shape(at, 5), svg("text", { x: at + 22, y: 15 }, text)];
  });
  const legend = figureSvg(x, 22, "Legend", entries.map((entry) => entry.text).join(", "));
  legend.append(...parts.flat());
  return legend;
}

/** Draw a scale of the colors of a matrix, from `low` to `high`; below zero the colors are those of negative values. */
export function colorScale(label, low, high, format = String) {
  const [count, width, left] = [20, 10, labelWidth([label], 40) + 12];
  const legend = figureSvg(left + count * width + labelWidth([format(high)], 12) + 16, 36, "Color scale", `${label}: from ${format(low)} to ${format(high)}`);
  legend.append(svg("text", { x: 2, y: 15 }, label));
  for (let n = 0; n < count; n++) {
    const value = low < 0 ? (2 * n) / (count - 1) - 1 : n / (count - 1);
    legend.append(svg("rect", { x: left + n * width, y: 4, width, height: 14, class: value < 0 ? "cold" : "heat", "fill-opacity": round(Math.abs(value)) }));
  }
  legend.append(svg("rect", { x: left, y: 4, width: count * width, height: 14, class: "frame" }));
  const marks = low < 0 ? [[0, low], [0.5, 0], [1, high]] : [[0, low], [1, high]];
  for (const [share, value] of marks) legend.append(svg("text", { x: left + share * count * width, y: 32, class: "number", "text-anchor": share === 0 ? "start" : "middle" }, format(value)));
  return legend;
}

// ---- text on colored cells

const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
const luminance = (rgb) => rgb.reduce((sum, part, n) => sum + [0.2126, 0.7152, 0.0722][n] * linear(part / 255), 0);
const BLACK_LIMIT = Math.sqrt(1.05 * 0.05) - 0.05; // black text has a better contrast on brighter colors, at least 4.58 : 1
const colors = new Map(); // variable → [light, dark] colors as numbers

/** Return the colors of a CSS variable in the light and the dark theme. */
function themeColors(name) {
  if (!colors.has(name)) {
    const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const schemes = /^light-dark\(([^,]+),([^)]+)\)$/.exec(value)?.slice(1) ?? [value, value];
    colors.set(name, schemes.map((color) => color.trim().match(/[0-9a-f]{2}/gi).map((part) => Number.parseInt(part, 16))));
  }
  return colors.get(name);
}

/** Return the class of text on a cell of this color and opacity: black or white in either theme, whichever is readable. */
export function textClass(opacity, fill = "heat") {
  const [light, dark] = [0, 1].map((theme) => {
    const [cell, paper] = [themeColors(`--${fill}`)[theme], themeColors("--paper")[theme]];
    return luminance(cell.map((part, n) => opacity * part + (1 - opacity) * paper[n])) > BLACK_LIMIT ? "black" : "white";
  });
  return `on-${light}-${dark}`;
}

/** Draw a matrix of values from −1 to 1 with one path per intensity, so that large matrices need few elements. */
export function matrixPaths(rows, [width, height], levels) {
  const paths = new Map();
  rows.forEach((row, i) => row.forEach((value, j) => {
    const level = Math.round(value * levels);
    if (!level) return;
    if (!paths.has(level)) paths.set(level, []);
    paths.get(level).push(`M${round(j * width)} ${round(i * height)}h${round(width)}v${round(height)}h${round(-width)}z`);
  }));
  return [...paths].map(([level, parts]) => svg("path", { d: parts.join(""), class: level > 0 ? "heat" : "cold", "fill-opacity": round(Math.min(1, Math.abs(level) / levels)) }));
}

/**
 * Draw a table of tokens, colored by probability. Rows are {name, cells}; cells are {text, probability, label, chosen, tooltip},
 * where `chosen` marks the token of the translation.
 */
export function tokenTable(title, columns, rows, description) {
  const left = labelWidth(rows.map((row) => row.name), 16) + 16;
  const widths = columns.map((_, n) => Math.max(58, labelWidth(rows.map((row) => row.cells[n]?.text ?? ""), 14) + 18));
  const columnX = widths.reduce((list, width) => [...list, list.at(-1) + width], [left]);
  const figure = figureSvg(columnX.at(-1) + 4, 28 + ROW_HEIGHT * rows.length + 4, title, description);
  columns.forEach((column, n) => figure.append(svg("text", { x: round(columnX[n] + widths[n] / 2), y: 18, "text-anchor": "middle", class: "faint" }, String(column))));
  rows.forEach((row, i) => {
    const y = 28 + ROW_HEIGHT * i;
    figure.append(svg("text", { x: round(left - 10), y: y + ROW_HEIGHT / 2 + 4, "text-anchor": "end", class: "faint" }, shorten(row.name, 16)));
    row.cells.forEach((cell, n) => {
      if (!cell) return;
      const box = { x: round(columnX[n] + 1), y: y + 1, width: round(widths[n] - 2), height: ROW_HEIGHT - 2, rx: 4 };
      const x = round(columnX[n] + widths[n] / 2);
      const opacity = cellOpacity(cell.chosen, cell.probability);
      const onCell = textClass(opacity, cell.chosen ? "heat" : "muted");
      figure.append(svg("g", { "data-place": `${i},${n}`, class: cell.chosen ? "cell chosen-token" : "cell" },
        svg("title", {}, cell.tooltip),
        svg("rect", { ...box, class: cell.chosen ? "heat" : "plain", "fill-opacity": opacity }),
        svg("text", { x, y: y + 15, "text-anchor": "middle", class: `${onCell}${cell.chosen ? " bold" : ""}` }, shorten(cell.text, 14)),
        svg("text", { x, y: y + 28, "text-anchor": "middle", class: `${onCell} number` }, cell.label)));
    });
  });
  return figure;
}

const cellOpacity = (chosen, probability) => round(0.06 + (chosen ? 0.5 : 0.28) * probability);

/** Return the legend of a token table. */
export const tokenTableLegend = (chosen) => swatchLegend([[chosen, true, 0.9], ["other token", false, 0.9], ["stronger color: more probable", false, 0.1]]
  .map(([text, isChosen, probability]) => ({ text, shape: (x, y) => svg("rect", { x, y, width: 16, height: 12, rx: 3, class: isChosen ? "heat" : "plain", "fill-opacity": cellOpacity(isChosen, probability) }) })));

export const round = (value) => Math.round(value * 100) / 100;

/** Width of a text in terminal cells: East Asian characters take two cells, combining marks none. */
function cellWidth(text) {
  let cells = 0;
  for (const letter of text) cells += /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{3fffd}]/u.test(letter) ? 2 : /\p{M}/u.test(letter) ? 0 : 1;
  return cells;
}

/** Width in pixels of the longest shortened label. */
export const labelWidth = (texts, maxCells = 18) => CHARACTER_WIDTH * Math.max(0, ...texts.map((text) => cellWidth(shorten(text, maxCells))));

export function shorten(text, maxCells = 18) {
  if (cellWidth(text) <= maxCells) return text;
  let start = "";
  for (const letter of text) {
    if (cellWidth(start + letter) > maxCells - 1) break;
    start += letter;
  }
  return `${start}…`;
}

/** Return round numbers that cover a range in at most `maxSteps` steps. */
export function ticks(low, high, maxSteps = 5) {
  if (low === high) [low, high] = [Math.min(0, low), Math.max(0, high) || 1];
  const power = 10 ** Math.floor(Math.log10((high - low) / maxSteps));
  const step = [1, 2, 5, 10, 20].map((factor) => factor * power).find((size) => Math.ceil(high / size) - Math.floor(low / size) <= maxSteps);
  const values = [];
  for (let n = Math.floor(low / step); n <= Math.ceil(high / step); n++) values.push(Number((n * step).toPrecision(12)));
  return values;
}

// ---- downloads

function download(blob, fileName) {
  const address = URL.createObjectURL(blob);
  html("a", { href: address, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const svgBlob = (text) => new Blob([text], { type: "image/svg+xml" });

function saveSvg(titled, fileName) {
  download(svgBlob(standaloneSvg(titled, `${figureRules(0)}\n@media (prefers-color-scheme: dark) { ${figureRules(1)} }`).text), fileName);
}

/** Convert a figure to PNG, with two pixels per unit and the colors of the present theme. */
async function savePng(titled, fileName) {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark"
    || (getComputedStyle(document.documentElement).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const { text, width, height } = standaloneSvg(titled, figureRules(isDark ? 1 : 0));
  const address = URL.createObjectURL(svgBlob(text));
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = html("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  canvas.toBlob((blob) => download(blob, fileName), "image/png");
}

/** Return a copy of a figure at a height of a larger one, and its size. */
function placedCopy(figure, y) {
  const copy = figure.cloneNode(true);
  const [, , width, height] = figure.getAttribute("viewBox").split(" ").map(Number);
  for (const name of ["style", "tabindex"]) copy.removeAttribute(name);
  for (const element of copy.querySelectorAll("[tabindex]")) element.removeAttribute("tabindex");
  for (const [name, value] of Object.entries({ x: 12, y, width, height })) copy.setAttribute(name, value);
  return { copy, width, height };
}

/** Serialize a figure with title, run, sentence, legend and styles. */
function standaloneSvg({ figure, heading, note, legend, origin }, rules) {
  const lines = [[heading, "bold"], ...origin.map((text) => [text, null]), ...(note ? [[note, "faint"]] : [])];
  const content = placedCopy(figure, 20 + 20 * lines.length);
  const below = legend && placedCopy(legend, 24 + 20 * lines.length + content.height);
  const width = Math.ceil(24 + Math.max(320, content.width, below?.width ?? 0, ...lines.map(([text]) => labelWidth([text], 400))));
  const height = Math.ceil(32 + 20 * lines.length + content.height + (below?.height ?? 0));
  const style = svg("style");
  style.textContent = rules;
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", class: "picture", viewBox: `0 0 ${width} ${height}`, width, height },
    svg("title", {}, heading), svg("desc", {}, figure.getAttribute("aria-label")), style, svg("rect", { class: "ground", width: "100%", height: "100%" }),
    lines.map(([text, name], n) => svg("text", { x: 12, y: 24 + 20 * n, class: name }, text)), content.copy, below?.copy);
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

/** Return the CSS rules of figures with colors instead of variables; `scheme` selects from light-dark(light, dark). */
function figureRules(scheme) {
  const root = getComputedStyle(document.documentElement);
  const color = (_, name) => {
    const value = root.getPropertyValue(name).trim();
    const schemes = /^light-dark\(([^,]+),([^)]+)\)$/.exec(value);
    return schemes ? schemes[1 + scheme].trim() : value;
  };
  return [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
    .filter((rule) => rule.selectorText?.startsWith(".picture"))
    .map((rule) => rule.cssText.replace(/var\((--[a-z0-9-]+)\)/g, color))
    .join("\n");
}
