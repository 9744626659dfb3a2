// Positions: how a run tells places apart, and how alike they are to it.

import { draw, make } from "./dom.js";
import { cells, framed, picture, round } from "./svg.js";

export const ofSentence = false;

const WAYS = {
  additive: "added to the embeddings", rotary: "queries and keys are turned by it",
  relative_keys: "a vector for each distance, added to keys", bias: "added to the scores of attention",
};
const SIDE = 320;
const MOST = 128; // columns of a map that are drawn
const HEADS = 8;
const known = new Map();

export async function show(place, { sides, get }) {
  const boxes = sides.map((side) => make("section", { class: "side", "data-side": side.number }, sides.length > 1 ? make("h3", {}, side.run.name) : null, make("p", { class: "empty" }, "Looking …")));
  place.replaceChildren(make("div", { class: "sides" }, boxes));
  await Promise.all(sides.map(async (side, n) => {
    const { name } = side.run;
    try {
      if (!known.has(name)) known.set(name, (await get(`/v1/runs/${encodeURIComponent(name)}/positions`)).positions);
      const found = known.get(name);
      boxes[n].lastChild.remove();
      boxes[n].append(...(found.length ? found.map((one) => positions(one, name)) : [make("p", { class: "empty" }, "This system has no position parts: it reads one word after the other, and so knows their order.")]));
    } catch (error) {
      boxes[n].lastChild.textContent = error.message;
    }
  }));
}

function positions(one, run) {
  const of = one.mechanism === "relative_keys" ? "distance" : "place";
  const maps = one.bias
    ? one.bias.slice(0, HEADS).map((bias, n) => [`head ${n + 1}: query by key`, bias])
    : [[`a row for each ${of}, a column for each dimension`, one.encoding], [`how alike they are: cosine of ${of} and ${of}`, one.similarity]];
  const across = Math.min(2, maps.length);
  const svg = picture(across * (SIDE + 28) - 20, Math.ceil(maps.length / across) * (SIDE + 54), `${one.name} positions`, `${WAYS[one.mechanism]}, ${one.labels.length} of them`);
  maps.forEach(([label, values], n) => svg.append(map(label, values, one.labels, 2 + (n % across) * (SIDE + 28), 26 + Math.floor(n / across) * (SIDE + 54))));
  const where = one.paths.length === 1 ? one.paths[0] : `${one.paths[0]} and ${one.paths.length - 1} alike`;
  return framed(`${one.name} positions`, `${WAYS[one.mechanism]}; ${where}. Blue above zero, orange below; the strongest colour is the largest value of its map.`, svg, `positions-${run}-${one.name}`, () => one);
}

function map(label, values, labels, x, y) {
  const step = Math.max(1, Math.ceil(values[0].length / MOST));
  const rows = values.map((row) => row.filter((_, n) => n % step === 0));
  const most = Math.max(...rows.flat().map(Math.abs)) || 1;
  const size = [SIDE / rows[0].length, SIDE / rows.length];
  return draw("g", { transform: `translate(${x} ${y})` },
    draw("text", { y: -8, class: "faint" }, label),
    cells(rows.map((row) => row.map((value) => round(value / most))), size, (level) => (level > 0 ? "heat" : "cold"), 16),
    draw("rect", { class: "frame", width: SIDE, height: SIDE }),
    draw("text", { y: SIDE + 16, class: "number" }, `from ${labels[0]} at the top to ${labels.at(-1)}`));
}
