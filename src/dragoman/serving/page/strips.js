// Vectors and matrices as colored strips: blue is positive, orange negative; pointer and arrow keys show the numbers.

import { formatNumber, formatPercent, html, svg } from "./dom.js";
import { figureSvg, labelWidth, matrixPaths, round, shorten } from "./figures.js";

const LINE = 128; // elements of a vector per line
const WIDTH = 640; // pixels of a line
const LEVELS = 16;
const MAX_BARS = 14; // that fit without scrolling

export const largestValue = (rows) => Math.max(1e-9, ...rows.map((row) => Math.max(...row.map(Math.abs))));

/** Draw rows of numbers as strips in a group; `width` and `height` are those of a cell. */
export function stripPaths(rows, largest, width, height) {
  return matrixPaths(rows.map((row) => row.map((value) => value / largest)), [width, height], LEVELS);
}

/**
 * Create a figure of one vector, or of one vector per key (`labels`), and a line of text with the number under the pointer.
 * With the focus, arrow keys move from number to number.
 */
export function stripFigure(title, values, labels = []) {
  const isMatrix = Array.isArray(values[0]);
  const width = isMatrix ? values[0].length : values.length;
  const rows = isMatrix ? values : Array.from({ length: Math.ceil(width / LINE) }, (_, n) => values.slice(n * LINE, (n + 1) * LINE));
  const left = isMatrix ? labelWidth(labels, 16) + 12 : 0;
  const [columns, height] = [Math.max(...rows.map((row) => row.length)), isMatrix ? 18 : 24];
  const cell = Math.min(22, WIDTH / columns);
  const largest = largestValue(rows);
  const figure = figureSvg(left + columns * cell + 2, rows.length * height + 2, title, `${isMatrix ? `${rows.length} × ${width}` : width} numbers from ${formatNumber(Math.min(...rows.flat()))} to ${formatNumber(Math.max(...rows.flat()))}; arrow keys show them one by one`);
  const cursor = svg("rect", { class: "cursor", width: Math.max(3, cell), height: height - 4, visibility: "hidden" });
  figure.append(
    ...(isMatrix ? labels.map((label, n) => svg("text", { x: left - 8, y: n * height + 13, "text-anchor": "end" }, shorten(label, 16))) : []),
    svg("g", { transform: `translate(${left} 1)` }, stripPaths(rows, largest, cell, height),
      rows.map((row, n) => svg("rect", { class: "frame", y: n * height, width: round(row.length * cell), height: height - (isMatrix ? 0 : 2) })), cursor));
  figure.setAttribute("tabindex", "0");
  if (!isMatrix) figure.setAttribute("preserveAspectRatio", "none"); // it may become narrower, but not lower
  const output = html("p", { class: "strip-value muted figures", "aria-live": "polite" }, `strongest color: ±${formatNumber(largest)}`);
  let place = [0, -1];
  const show = (row, column) => {
    place = [Math.max(0, Math.min(rows.length - 1, row)), 0];
    place[1] = Math.max(0, Math.min(rows[place[0]].length - 1, column));
    const [i, j] = place;
    for (const [name, value] of Object.entries({ x: round(j * cell), y: i * height + 1, visibility: "visible" })) cursor.setAttribute(name, value);
    output.textContent = `${isMatrix ? `“${labels[i]}”, ` : ""}element ${(isMatrix ? 0 : i * LINE) + j + 1}: ${formatNumber(rows[i][j], 3)}`;
  };
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect();
    const { width: fullWidth, height: fullHeight } = figure.viewBox.baseVal;
    show(Math.floor(((event.clientY - box.top) * fullHeight) / box.height / height), Math.floor((((event.clientX - box.left) * fullWidth) / box.width - left) / cell));
  });
  figure.addEventListener("keydown", (event) => {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -Infinity], End: [0, Infinity] }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    show(place[0] + by[0], place[1] + by[1]);
  });
  return html("div", { class: "strip" }, html("div", { class: "scroll" }, figure), output);
}

/** Create a list of keys with a bar and a number each: shares of 100 %, or scores of either sign. */
export function barList(title, labels, values, isShare) {
  const finite = values.filter((value) => value !== null);
  const largest = isShare ? 1 : largestValue([finite.length ? finite : [0]]);
  const list = html("ol", { class: "bar-list", "aria-label": title });
  labels.forEach((label, n) => {
    const value = values[n];
    const row = html("li", { class: value !== null && value < 0 ? "negative" : null },
      html("span", { class: "piece", dir: "auto" }, label), html("span", { class: "track" }, html("span", { class: "amount" })),
      html("span", { class: "figures" }, value === null ? "−∞" : isShare ? formatPercent(value) : formatNumber(value)));
    row.style.setProperty("--share", value === null ? 0 : Math.abs(value) / largest);
    list.append(row);
  });
  if (labels.length > MAX_BARS) list.tabIndex = 0; // it scrolls
  return list;
}
