// Layers: the predictions of the output layer applied to the states after each layer.

import { dataTable, formatProbability, html, missingMessage, runSection } from "./dom.js";
import { framedFigure, tokenTable, tokenTableLegend } from "./figures.js";
import { displayToken } from "./tokens.js";

export const needsSentence = true;

export function show(container, { panels }) {
  container.replaceChildren(html("div", { class: "panels" }, panels.map((panel) => runSection(panel, panels, content(panel)))));
}

function content(panel) {
  const { inspection } = panel;
  if (!inspection?.layers.length) return missingMessage(panel, inspection ? "This system has no layers that can be read out one by one." : "Loading …");
  const rows = inspection.layers.map((layer) => ({
    name: layer.name,
    cells: layer.steps.map((step) => {
      const [best] = step.alternatives;
      const tooltip = step.alternatives.slice(0, 4).map((other) => `${displayToken(other.token)} ${formatProbability(other.probability)}`).join(", ");
      return { text: displayToken(best.token), probability: best.probability, label: formatProbability(best.probability), chosen: best.token_id === step.token_id, tooltip: `${layer.name}, before “${displayToken(step.token)}”: ${tooltip}` };
    }),
  }));
  const columns = inspection.steps.map((step) => displayToken(step.token));
  const title = "Predictions by layer";
  const figure = tokenTable(title, columns, rows, `${rows.length} rows, from the input to the last layer`);
  const table = dataTable(["", ...columns], () => rows.map((row) => [row.name, ...row.cells.map((cell) => `${cell.text} ${cell.label}`)]));
  return framedFigure(title, "The output layer applied to the states after each layer; the last row is the prediction of the model. Marked: the token of the translation.", figure, `layers-${panel.run.name}`, () => inspection.layers, [table], tokenTableLegend("token of the translation"));
}
