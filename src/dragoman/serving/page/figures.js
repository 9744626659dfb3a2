// Building blocks of all figures: SVG frames, labels, matrices, token tables, and downloads.

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

/** Create a figure with heading, note, download buttons and a scrollable area. `data()` returns the JSON to download. */
export function framedFigure(heading, note, content, fileName, data, extras = []) {
  const buttons = html("div", { class: "saving" },
    html("button", { type: "button", "aria-label": `Download “${heading}” as SVG`, click: () => download(standaloneSvg(content, heading), "image/svg+xml", `${fileName}.svg`) }, "SVG"),
    html("button", { type: "button", "aria-label": `Download “${heading}” as JSON`, click: () => download(JSON.stringify(data(), null, 1), "application/json", `${fileName}.json`) }, "JSON"));
  return html("figure", {},
    html("figcaption", {}, html("div", {}, html("h4", {}, heading), note ? html("p", { class: "muted" }, note) : null), buttons),
    html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heading }, content),
    ...extras);
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
      figure.append(svg("g", { "data-place": `${i},${n}`, class: cell.chosen ? "cell chosen-token" : "cell" },
        svg("title", {}, cell.tooltip),
        svg("rect", { ...box, class: cell.chosen ? "heat" : "plain", "fill-opacity": round(0.06 + (cell.chosen ? 0.5 : 0.28) * cell.probability) }),
        svg("text", { x, y: y + 15, "text-anchor": "middle", class: cell.chosen ? "bold" : null }, shorten(cell.text, 14)),
        svg("text", { x, y: y + 28, "text-anchor": "middle", class: "number" }, cell.label)));
    });
  });
  return figure;
}

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

function download(text, type, fileName) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  html("a", { href: address, download: fileName }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Serialize a figure with the styles of the page for light and dark color schemes. */
function standaloneSvg(figure, title) {
  const copy = figure.cloneNode(true);
  const [, , width, height] = figure.getAttribute("viewBox").split(" ");
  for (const name of ["style", "tabindex"]) copy.removeAttribute(name);
  for (const element of copy.querySelectorAll("[tabindex]")) element.removeAttribute("tabindex");
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(name, value);
  const style = svg("style");
  style.textContent = `${figureRules(0)}\n@media (prefers-color-scheme: dark) { ${figureRules(1)} }`;
  copy.prepend(svg("title", {}, title), svg("desc", {}, figure.getAttribute("aria-label")), style,
    svg("rect", { class: "ground", width: "100%", height: "100%" }));
  return new XMLSerializer().serializeToString(copy);
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
    .map((rule) => rule.cssText.replace(/var\((--[a-z-]+)\)/g, color))
    .join("\n");
}
