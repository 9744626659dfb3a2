// Gradients: which tokens influence each token of the translation, and how far gradients reach in the model.

import { dataTable, emptyMessage, failureMessage, formatPercent, html, missingMessage, runSection, svg } from "./dom.js";
import { figureSvg, framedFigure, round } from "./figures.js";
import { matrixFigure } from "./matrix_figure.js";
import { languageQuery, runFields } from "./session.js";
import { displayToken } from "./tokens.js";

export const needsSentence = true;

const COMPONENTS = {
  encoder: ["Within the encoder", "Gradient of an encoder state by the source tokens around it."],
  source: ["From the translation to the source", "Gradient of log p of a target token by source tokens; the distance counts both sentences as one sequence."],
  target: ["Within the translation", "Gradient of log p of a target token by earlier target tokens."],
};
const WIDTH = 460; // pixels
const HEIGHT = 210;
const MARGIN = { left: 56, right: 16, top: 14, bottom: 34 };
const MAX_CACHED = 60;
const cache = new Map(); // request → response
let loading = new AbortController();

async function cached(key, load) {
  if (!cache.has(key)) cache.set(key, await load());
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
  return cache.get(key);
}

export async function show(container, { state, panels, get, post }) {
  loading.abort();
  loading = new AbortController();
  const { signal } = loading;
  const sections = html("div", { class: "panels" });
  container.replaceChildren(sections);
  await Promise.all(panels.map(async (panel) => {
    const body = html("div", {}, emptyMessage("Loading …"));
    sections.append(runSection(panel, panels, body));
    const sentence = panel.sentences[state.sentence];
    if (!sentence || !panel.inspection?.target) {
      body.replaceChildren(missingMessage(panel, "Enter a sentence above to inspect its translation."));
      return;
    }
    const fields = { ...runFields(panel.run), text: sentence.source, translation: panel.inspection.target.text };
    try {
      const { saliency } = await cached(JSON.stringify(fields), () => post("/v1/saliency", fields, signal));
      if (signal.aborted) return;
      body.replaceChildren(...saliencyFigures(saliency));
      const { gradients } = await cached(`reach ${panel.run.name}`, () => get(`/v1/runs/${encodeURIComponent(panel.run.name)}/gradients?${new URLSearchParams(languageQuery(panel.run))}`, signal));
      if (!signal.aborted && gradients) body.append(...reachFigures(gradients));
    } catch (error) {
      if (!signal.aborted) body.append(failureMessage(error.message));
    }
  }));
}

function saliencyFigures({ source_tokens: sources, input_tokens: inputs, target_tokens: targets, source, target }) {
  const describe = (labels, weights) => (i, j) => `${displayToken(targets[i])} ← ${displayToken(labels[j])}: ${formatPercent(weights[i][j])}`;
  const maximum = Math.max(1e-9, ...source.flat(), ...target.flat()); // the darkest color
  const scaled = (weights) => weights.map((row) => row.map((weight) => weight / maximum));
  const figure = (title, note, labels, weights, name) => framedFigure(title, note,
    matrixFigure(title, targets.map(displayToken), labels.map(displayToken), scaled(weights), describe(labels, weights)), name, () => ({ rows: targets, columns: labels, weights }),
    [dataTable(["", ...labels.map(displayToken)], () => targets.map((token, i) => [displayToken(token), ...weights[i].map(formatPercent)]))]);
  return [html("div", { class: "pair history-figures" },
    figure("Influence of the source", "Share of the gradient norm ‖∂ log p(row) / ∂ embedding of the column‖. Unlike attention, it covers the whole model.", sources, source, "saliency-source"),
    figure("Influence of earlier target tokens", "The rest of each row: what the model has written before. Both figures have the same colors.", inputs, target, "saliency-target"))];
}

/** Draw how gradient norms fall with distance, relative to the nearest token, on a logarithmic axis. */
function reachFigures({ curves, sentences }) {
  const figures = Object.entries(COMPONENTS).filter(([name]) => curves[name]?.length > 1).map(([name, [title, note]]) => {
    const points = curves[name].map(({ distance, relative }) => [distance, relative]).filter(([, relative]) => relative > 0);
    return framedFigure(title, note, reachFigure(title, points), `gradients-${name}`, () => curves[name],
      [dataTable(["distance", "relative norm"], () => points.map(([distance, relative]) => [distance, relative.toPrecision(3)]))]);
  });
  if (!figures.length) return [];
  return [
    html("h3", { class: "validation-title" }, "How far gradients reach"),
    html("p", { class: "muted history-note" }, `Mean over ${sentences} validation sentences, relative to the nearest token. In a recurrent network gradients vanish with distance; attention shortens the path.`),
    html("div", { class: "gallery" }, figures),
  ];
}

function reachFigure(title, points) {
  const [bottom, right] = [HEIGHT - MARGIN.bottom, WIDTH - MARGIN.right];
  const low = Math.min(-1, Math.floor(Math.log10(Math.min(...points.map(([, y]) => y)))));
  const high = Math.max(0, Math.ceil(Math.log10(Math.max(...points.map(([, y]) => y)))));
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const xPosition = (x) => round(MARGIN.left + ((x - first) / (last - first || 1)) * (right - MARGIN.left));
  const yPosition = (y) => round(bottom - ((Math.log10(y) - low) / (high - low)) * (bottom - MARGIN.top));
  const figure = figureSvg(WIDTH, HEIGHT, title, `falls to ${points.at(-1)[1].toPrecision(2)} at distance ${last}`);
  const stride = Math.ceil((high - low) / 6);
  for (let power = low; power <= high; power += stride) {
    const y = yPosition(10 ** power);
    figure.append(svg("line", { x1: MARGIN.left, x2: right, y1: y, y2: y, class: "rule" }), svg("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end", class: "number" }, power < -3 || power > 3 ? `1e${power}` : String(10 ** power)));
  }
  for (const [x] of points.filter((_, n) => n % Math.ceil(points.length / 8) === 0)) figure.append(svg("text", { x: xPosition(x), y: bottom + 18, "text-anchor": "middle", class: "number" }, String(x)));
  figure.append(svg("text", { x: right, y: HEIGHT - 5, "text-anchor": "end", class: "faint" }, "distance in tokens"));
  figure.append(svg("path", { d: `M${points.map(([x, y]) => `${xPosition(x)} ${yPosition(y)}`).join("L")}`, class: "curve series0" }));
  return figure;
}
