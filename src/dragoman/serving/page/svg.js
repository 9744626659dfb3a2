// Pictures: what all of them are drawn with, and how they are saved.

import { draw, make } from "./dom.js";

const LETTER = 7.2; // pixels that a letter takes, about

/** An empty picture of so many pixels, which grows with the size of the type. */
export function picture(width, height, title, told) {
  const svg = draw("svg", { class: "picture", viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, role: "img", "aria-label": told ? `${title}: ${told}` : title });
  svg.style.width = `${Math.ceil(width) / 16}rem`;
  svg.style.height = `${Math.ceil(height) / 16}rem`;
  return svg;
}

/** A picture under its heading, with buttons to save it, in a box of its own that scrolls. */
export function framed(heading, note, svg, name, data, more = []) {
  const save = make("div", { class: "saving" },
    make("button", { type: "button", "aria-label": `Download “${heading}” as SVG`, click: () => saveSvg(svg, name, heading) }, "SVG"),
    make("button", { type: "button", "aria-label": `Download “${heading}” as JSON`, click: () => saveJson(data(), name) }, "JSON"));
  return make("figure", {},
    make("figcaption", {}, make("div", {}, make("h4", {}, heading), note ? make("p", { class: "quiet" }, note) : null), save),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heading }, svg),
    ...more);
}

/** Cells of like strength as one path each: thousands of cells are a few elements. */
export function cells(rows, size, paint, levels = 12) {
  const paths = new Map();
  rows.forEach((row, i) => row.forEach((value, j) => {
    const level = Math.round(value * levels);
    if (!level) return;
    if (!paths.has(level)) paths.set(level, []);
    paths.get(level).push(`M${round(j * size[0])} ${round(i * size[1])}h${round(size[0])}v${round(size[1])}h${round(-size[0])}z`);
  }));
  return [...paths].map(([level, parts]) => draw("path", { d: parts.join(""), class: paint(level), "fill-opacity": round(Math.min(1, Math.abs(level) / levels)) }));
}

export const round = (value) => Math.round(value * 100) / 100;

/** How many cells of a terminal a text would take: letters of the East are twice as wide. */
export function width(text) {
  let cells = 0;
  for (const letter of text) cells += /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{3fffd}]/u.test(letter) ? 2 : /\p{M}/u.test(letter) ? 0 : 1;
  return cells;
}

/** Pixels that the longest of some texts takes. */
export const room = (texts, most = 18) => LETTER * Math.max(0, ...texts.map((text) => width(short(text, most))));

export function short(text, most = 18) {
  if (width(text) <= most) return text;
  let kept = "";
  for (const letter of text) {
    if (width(kept + letter) > most - 1) break;
    kept += letter;
  }
  return `${kept}…`;
}

/** Round numbers around a range. */
export function ticks(low, high, most = 5) {
  if (low === high) [low, high] = [Math.min(0, low), Math.max(0, high) || 1];
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = [1, 2, 5, 10, 20].map((factor) => factor * power).find((one) => Math.ceil(high / one) - Math.floor(low / one) <= most);
  const found = [];
  for (let n = Math.floor(low / step); n <= Math.ceil(high / step); n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

// ---- saving

function save(text, type, name) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export const saveJson = (data, name) => save(JSON.stringify(data, null, 1), "application/json", `${name}.json`);

/** A file of its own: the rules that the page paints pictures by, for light and for dark readers. */
export function standalone(svg, title) {
  const copy = svg.cloneNode(true);
  const [, , wide, tall] = svg.getAttribute("viewBox").split(" ");
  for (const name of ["style", "tabindex"]) copy.removeAttribute(name);
  for (const one of copy.querySelectorAll("[tabindex]")) one.removeAttribute("tabindex");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", wide);
  copy.setAttribute("height", tall);
  const style = draw("style");
  style.textContent = `${rules(0)}\n@media (prefers-color-scheme: dark) { ${rules(1)} }`;
  copy.prepend(draw("title", {}, title), draw("desc", {}, svg.getAttribute("aria-label")), style,
    draw("rect", { class: "ground", width: "100%", height: "100%" }));
  return new XMLSerializer().serializeToString(copy);
}

const saveSvg = (svg, name, title) => save(standalone(svg, title), "image/svg+xml", `${name}.svg`);

/** The page's rules for pictures, with colours in the place of variables: light-dark(light, dark) is one of both. */
function rules(scheme) {
  const root = getComputedStyle(document.documentElement);
  const colour = (_, name) => {
    const value = root.getPropertyValue(name).trim();
    const both = /^light-dark\(([^,]+),([^)]+)\)$/.exec(value);
    return both ? both[1 + scheme].trim() : value;
  };
  const sheets = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  return sheets
    .filter((rule) => rule.selectorText?.startsWith(".picture"))
    .map((rule) => rule.cssText.replace(/var\((--[a-z-]+)\)/g, colour))
    .join("\n");
}
