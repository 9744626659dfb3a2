// Words in rows and columns, each the stronger painted the likelier it is: alternatives, layers.

import { draw } from "./dom.js";
import { picture, room, round, short } from "./svg.js";

const TALL = 34;

/** `rows`: a name, and for every column what stands there: text, share, and whether it is what was chosen. */
export function grid(title, columns, rows, told) {
  const left = room(rows.map((row) => row.name), 16) + 16;
  const widths = columns.map((_, n) => Math.max(58, room(rows.map((row) => row.cells[n]?.text ?? ""), 14) + 18));
  const places = widths.reduce((list, wide) => [...list, list.at(-1) + wide], [left]);
  const svg = picture(places.at(-1) + 4, 28 + TALL * rows.length + 4, title, told);
  columns.forEach((column, n) => svg.append(draw("text", { x: round(places[n] + widths[n] / 2), y: 18, "text-anchor": "middle", class: "faint" }, String(column))));
  rows.forEach((row, i) => {
    const y = 28 + TALL * i;
    svg.append(draw("text", { x: round(left - 10), y: y + TALL / 2 + 4, "text-anchor": "end", class: "faint" }, short(row.name, 16)));
    row.cells.forEach((cell, n) => {
      if (!cell) return;
      const box = { x: round(places[n] + 1), y: y + 1, width: round(widths[n] - 2), height: TALL - 2, rx: 4 };
      const x = round(places[n] + widths[n] / 2);
      svg.append(draw("g", { "data-place": `${i},${n}`, class: cell.chosen ? "cell own" : "cell" },
        draw("title", {}, cell.told),
        draw("rect", { ...box, class: cell.chosen ? "heat" : "plain", "fill-opacity": round(0.06 + (cell.chosen ? 0.5 : 0.28) * cell.share) }),
        draw("text", { x, y: y + 15, "text-anchor": "middle", class: cell.chosen ? "bold" : null }, short(cell.text, 14)),
        draw("text", { x, y: y + 28, "text-anchor": "middle", class: "number" }, cell.below)));
    });
  });
  return svg;
}
