// Position encodings of the runs, and the similarity of positions.

import { emptyMessage, failureMessage, html, runSection, svg } from "./dom.js";
import { colorScale, figureSvg, framedFigure, matrixPaths } from "./figures.js";

export const needsSentence = false;

const MECHANISMS = {
  additive: "added to the embeddings", concatenated: "concatenated to the embeddings", rotary: "rotates queries and keys",
  relative_keys: "a vector for each distance, added to the keys", bias: "added to the attention scores",
};
const MAP_SIZE = 320; // pixels
const MAX_COLUMNS = 128; // of a map
const MAX_HEADS = 8;
const cache = new Map(); // run → its encodings

export async function show(container, { panels, get }) {
  const sections = panels.map((panel) => runSection(panel, panels, emptyMessage("Loading …")));
  container.replaceChildren(html("div", { class: "panels" }, sections));
  await Promise.all(panels.map(async ({ run: { name } }, n) => {
    try {
      if (!cache.has(name)) cache.set(name, (await get(`/v1/runs/${encodeURIComponent(name)}/positions`)).positions);
      const figures = cache.get(name).map((encoding) => encodingFigure(encoding, name));
      sections[n].lastChild.replaceWith(...(figures.length ? figures : [emptyMessage("This system has no position encodings: recurrence or convolution encode the order, if anything does.")]));
    } catch (error) {
      sections[n].lastChild.replaceWith(failureMessage(error.message));
    }
  }));
}

function encodingFigure(encoding, run) {
  const unit = encoding.mechanism === "relative_keys" ? "distance" : "position";
  const maps = encoding.bias
    ? encoding.bias.slice(0, MAX_HEADS).map((bias, n) => [`head ${n + 1}: query by key`, bias])
    : [[`rows: ${unit}s, columns: dimensions`, encoding.encoding], [`cosine similarity of ${unit}s`, encoding.similarity]];
  const perRow = Math.min(2, maps.length);
  const title = `Positions: ${encoding.name}`;
  const figure = figureSvg(perRow * (MAP_SIZE + 28) - 20, Math.ceil(maps.length / perRow) * (MAP_SIZE + 54), title, `${MECHANISMS[encoding.mechanism]}, ${encoding.labels.length} positions`);
  maps.forEach(([label, values], n) => figure.append(drawMap(label, values, encoding.labels, 2 + (n % perRow) * (MAP_SIZE + 28), 26 + Math.floor(n / perRow) * (MAP_SIZE + 54))));
  const layers = encoding.layers.length === 1 ? encoding.layers[0] : `${encoding.layers[0]}, and ${encoding.layers.length - 1} more with equal values`;
  return framedFigure(title, `${MECHANISMS[encoding.mechanism]}; ${layers}. Blue: positive, orange: negative; the strongest color is the largest absolute value of the map.`, figure, `positions-${run}-${encoding.name}`, () => encoding, [], colorScale("share of the largest absolute value", -1, 1));
}

function drawMap(label, values, labels, x, y) {
  const step = Math.max(1, Math.ceil(values[0].length / MAX_COLUMNS));
  const rows = values.map((row) => row.filter((_, n) => n % step === 0));
  const largest = Math.max(...rows.flat().map(Math.abs)) || 1;
  return svg("g", { transform: `translate(${x} ${y})` },
    svg("text", { y: -8, class: "faint" }, label),
    matrixPaths(rows.map((row) => row.map((value) => value / largest)), [MAP_SIZE / rows[0].length, MAP_SIZE / rows.length], 16),
    svg("rect", { class: "frame", width: MAP_SIZE, height: MAP_SIZE }),
    svg("text", { y: MAP_SIZE + 16, class: "number" }, `from ${labels[0]} at the top to ${labels.at(-1)}`));
}
