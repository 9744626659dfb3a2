// A matrix of weights with the tokens of its rows and columns, which the arrow keys and the pointer explore.

import { formatPercent, svg } from "./dom.js";
import { figureSvg, labelWidth, matrixPaths, round, shorten } from "./figures.js";

const CELL = 26; // pixels
const LEVELS = 20;
const MAX_LABEL = 14; // cells of a terminal

/** Draw a matrix of shares from 0 to 1; `describe(row, column)` returns the text of a cell. */
export function matrixFigure(title, rows, columns, weights, describe = () => "") {
  const left = labelWidth(rows, MAX_LABEL) + 18;
  const top = labelWidth(columns, MAX_LABEL) * 0.72 + 20; // slanted labels
  const right = left + CELL * columns.length;
  const figure = figureSvg(right + top * 0.7 + 8, top + CELL * rows.length + 30, title, `${rows.length} rows and ${columns.length} columns`);
  columns.forEach((label, n) => {
    const [x, y] = [round(left + CELL * (n + 0.5)), round(top - 6)];
    figure.append(svg("text", { x, y, transform: `rotate(-45 ${x} ${y})` }, shorten(label, MAX_LABEL)));
  });
  rows.forEach((label, n) => figure.append(svg("text", { x: round(left - 8), y: round(top + CELL * (n + 0.5) + 4), "text-anchor": "end" }, shorten(label, MAX_LABEL))));
  const cells = svg("g", { transform: `translate(${round(left)} ${round(top)})` }, ...matrixPaths(weights, [CELL, CELL], LEVELS));
  figure.append(cells, svg("rect", { x: round(left), y: round(top), width: CELL * columns.length, height: CELL * rows.length, class: "frame" }));
  explore(figure, { left, top, right, rows, columns, weights, describe });
  return figure;
}

/** Show the weight under the pointer, or of the cell that the arrow keys select. */
function explore(figure, { left, top, right, rows, columns, weights, describe }) {
  const cursor = svg("rect", { width: CELL, height: CELL, class: "cursor", visibility: "hidden" });
  const label = svg("text", { x: round(Math.max(right, left + 120)), y: round(top + CELL * rows.length + 20), "text-anchor": "end", class: "number bold", "aria-live": "polite" });
  figure.append(cursor, label);
  let place = [0, 0];
  const mark = ([i, j]) => {
    if (!rows[i] || !columns[j]) return;
    place = [i, j];
    cursor.setAttribute("x", round(left + CELL * j));
    cursor.setAttribute("y", round(top + CELL * i));
    cursor.setAttribute("visibility", "visible");
    label.textContent = describe(i, j) || `${rows[i]} ← ${columns[j]}: ${formatPercent(weights[i][j])}`;
  };
  figure.setAttribute("tabindex", "0");
  figure.addEventListener("focus", () => mark(place));
  figure.addEventListener("keydown", (event) => {
    const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !across) return;
    event.preventDefault();
    mark([place[0] + down, place[1] + across]);
  });
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect();
    const scale = figure.viewBox.baseVal.width / box.width;
    mark([Math.floor(((event.clientY - box.top) * scale - top) / CELL), Math.floor(((event.clientX - box.left) * scale - left) / CELL)]);
  });
}
