// Layers: what the model would say if it ended after each of them.

import { chance, make, table } from "./dom.js";
import { grid } from "./grid.js";
import { framed } from "./svg.js";
import { plain } from "./words.js";

export const ofSentence = true;

export function show(place, { sides }) {
  place.replaceChildren(make("div", { class: "sides" }, sides.map((side) => one(side, sides.length > 1))));
}

function one(side, named) {
  const box = make("section", { class: "side", "data-side": side.number }, named ? make("h3", {}, side.run.name) : null);
  const { seen } = side;
  if (!seen?.layers.length) {
    box.append(make("p", { class: "empty" }, side.error ?? (seen ? "This system has no layers that could be read one by one." : "Looking …")));
    return box;
  }
  const rows = seen.layers.map((layer) => ({
    name: layer.name,
    cells: layer.steps.map((step) => {
      const [best] = step.alternatives;
      return { text: plain(best.token), share: best.probability, below: chance(best.probability), chosen: best.token_id === step.token_id, told: step.alternatives.slice(0, 4).map((other) => `${other.token} ${chance(other.probability)}`).join(", ") };
    }),
  }));
  const columns = seen.steps.map((step) => plain(step.token));
  const svg = grid("What each layer would say", columns, rows, `${rows.length} rows, from what goes in to the last layer`);
  box.append(framed("What each layer would say", "The output layer reads what comes out of each layer as if the stack ended there; the last row is the model itself. Marked: the piece that was written in the end.", svg, `layers-${side.run.name}`, () => seen.layers,
    [table(["", ...columns], () => rows.map((row) => [row.name, ...row.cells.map((cell) => `${cell.text} ${cell.below}`)]))]));
  return box;
}
