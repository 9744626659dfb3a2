// Neurons: how the query of one token is compared with every key, element by element, in one attention head.

import { dataTable, emptyMessage, failureMessage, formatNumber, formatPercent, html, missingMessage, rovingFocus, runSection, select, svg } from "./dom.js";
import { colorScale, figureSvg, framedFigure, labelWidth, round, shorten } from "./figures.js";
import { direction, displayToken } from "./tokens.js";
import { largestValue, stripPaths } from "./strips.js";
import { requestWalk } from "./walk_requests.js";

export const needsSentence = true;

const KIND_NAMES = { cross: "cross-attention", encoder: "encoder", decoder: "decoder" };
const STRIP_WIDTH = 300; // pixels
const ROW = 26;

export function show(container, context) {
  container.replaceChildren(html("div", { class: "panels" }, context.panels.map((panel) => {
    const section = runSection(panel, context.panels, emptyMessage("Loading …"));
    showPanel(section, panel, context);
    return section;
  })));
}

/** Return the rows of an attention map that can be shown, as {row, request}: one prediction, or one source token. */
function queriesOf({ inspection }, map) {
  if (map.kind === "encoder") return map.queries.map((token, row) => ({ token, row, request: { position: row } }));
  const first = map.queries.length - inspection.steps.length; // a decoder-only model reads the source before
  return inspection.steps.map((step, n) => ({ token: step.token, row: first + n, request: { step: n } }));
}

async function showPanel(section, panel, context) {
  const { state, change, post } = context;
  const { inspection } = panel;
  const maps = inspection?.attention.filter((map) => KIND_NAMES[map.kind]) ?? [];
  const fill = (...children) => section.replaceChildren(...[...section.children].filter((child) => child.matches("h3")), ...children);
  if (!maps.length) {
    fill(missingMessage(panel, inspection ? "This system has no attention, so there are no queries and keys." : "Loading …"));
    return;
  }
  const ofKind = (kind) => maps.filter((map) => map.kind === kind);
  const kind = ofKind(state.kind).length ? state.kind : maps[0].kind;
  const layer = Math.min(Math.max(1, state.layer), ofKind(kind).length);
  const map = ofKind(kind)[layer - 1];
  const head = Math.min(Math.max(1, state.head), map.weights.length);
  const queries = queriesOf(panel, map);
  const index = Math.min(state.neuronQuery, queries.length - 1);
  const update = (patch, selector) => {
    change(patch);
    showPanel(section, panel, context).then(() => section.querySelector(selector)?.focus());
  };
  const numbers = (count) => Array.from({ length: count }, (_, n) => [n + 1, n + 1]);
  const language = kind === "encoder" ? panel.run.source : panel.run.target;
  const row = html("div", { class: "token-row", role: "group", "aria-label": "Query", lang: language, dir: direction(language) },
    queries.map(({ token }, n) => html("button", { type: "button", "aria-pressed": String(n === index), click: () => update({ neuronQuery: n }, ".token-row [aria-pressed=true]") }, displayToken(token))));
  rovingFocus(row, "button");
  const toolbar = html("div", { class: "toolbar" },
    select("Attention", Object.keys(KIND_NAMES).filter((name) => ofKind(name).length).map((name) => [name, KIND_NAMES[name]]), kind, (value) => update({ kind: value, layer: 1, neuronQuery: 0 }, "label:nth-of-type(1) select")),
    select("Layer", numbers(ofKind(kind).length), layer, (value) => update({ layer: Number(value) }, "label:nth-of-type(2) select")),
    select("Head", numbers(map.weights.length), head, (value) => update({ head: Number(value) }, "label:nth-of-type(3) select")));
  let content;
  try {
    const walk = await requestWalk(panel, { ...queries[index].request, head }, post);
    const steps = Object.fromEntries(walk.steps.filter((step) => step.path === map.path).map((step) => [step.name, step]));
    const title = `${KIND_NAMES[kind]} layer ${layer}, head ${head}: “${displayToken(queries[index].token)}”`;
    content = steps["terms of the scores"] ? neuronFigure(title, steps, panel.run.name) : emptyMessage("This layer does not compare queries and keys, so it has no neurons to show.");
  } catch (error) {
    content = failureMessage(error.message);
  }
  fill(toolbar, html("div", { class: "token-choice" }, html("span", { class: "name" }, "Query"), row), content);
}

/** Draw the query, and for each key its vector, the terms of its score, the score and the weight. */
function neuronFigure(title, steps, run) {
  const { query, keys, scores, "terms of the scores": terms, "attention weights": weights, "position bias": bias, mask } = steps;
  const labels = keys.key_labels.map(displayToken);
  const left = labelWidth([...labels, "query"], 16) + 14;
  const columns = [["key", left, keys.values], ["query × key", left + STRIP_WIDTH + 24, terms.values]];
  const numbersAt = left + 2 * STRIP_WIDTH + 48;
  const figure = figureSvg(numbersAt + 230, 70 + ROW * labels.length, title, `${labels.length} keys; the terms of a row sum to its score`);
  const strip = (values, largest, x, y) => svg("g", { transform: `translate(${x} ${y})` },
    stripPaths([values], largest, STRIP_WIDTH / values.length, ROW - 8), svg("rect", { class: "frame", width: STRIP_WIDTH, height: ROW - 8 }));
  figure.append(svg("text", { x: left - 8, y: 16, "text-anchor": "end", class: "bold" }, "query"), strip(query.values, largestValue([query.values]), left, 3));
  for (const [name, x] of [...columns, [bias ? "score + bias" : "score", numbersAt], ["weight", numbersAt + 110]]) figure.append(svg("text", { x, y: 48, class: "faint" }, name));
  labels.forEach((label, n) => {
    const y = 58 + ROW * n;
    const [at, weight] = [keys.keys[n], weights.values[keys.keys[n]]];
    const isHidden = mask && !mask.values[at];
    const score = isHidden ? "−∞ (hidden)" : `${formatNumber(scores.values[at])}${bias ? ` ${bias.values[at] < 0 ? "−" : "+"} ${formatNumber(Math.abs(bias.values[at]))}` : ""}`;
    const total = terms.values[n].reduce((sum, value) => sum + value, 0);
    figure.append(svg("g", { "data-key": n }, svg("title", {}, `“${label}”: ${terms.values[n].length} terms sum to ${formatNumber(total)}; weight ${formatPercent(weight)}`),
      svg("rect", { x: 0, y: y - 3, width: numbersAt + 230, height: ROW, fill: "transparent" }),
      svg("text", { x: left - 8, y: y + 13, "text-anchor": "end" }, shorten(label, 16)),
      columns.map(([, x, values]) => strip(values[n], largestValue(values), x, y)),
      svg("text", { x: numbersAt, y: y + 13, "data-score": n }, score),
      svg("rect", { x: numbersAt + 110, y, width: round(60 * weight), height: ROW - 8, class: "bar-fill" }),
      svg("text", { x: round(numbersAt + 116 + 60 * weight), y: y + 13, "data-weight": n }, formatPercent(weight))));
  });
  const output = readNumbers(figure, { left, labels, query: query.values, columns });
  const table = dataTable(["key", "score", "weight", ...query.values.map((_, n) => n + 1)],
    () => labels.map((label, n) => [label, formatNumber(scores.values[keys.keys[n]], 3), formatPercent(weights.values[keys.keys[n]]), ...terms.values[n].map((value) => formatNumber(value))]));
  const note = `${terms.formula === scores.formula ? "" : `Score: ${scores.formula}. `}Each element of the query is combined with the element of the key; the sum of these terms is the score, and the softmax of all scores gives the weights.${labels.length < scores.values.length ? ` The ${labels.length} of ${scores.values.length} keys with the largest weights are shown.` : ""}`;
  return framedFigure(title, note, figure, `neurons-${run}`, () => steps, [output, table], colorScale("share of the largest absolute value of a column", -1, 1));
}

/** Show the number under the pointer; with the focus, arrow keys move between the terms. Returns the line of text. */
function readNumbers(figure, { left, labels, query, columns }) {
  const output = html("p", { class: "strip-value figures", "aria-live": "polite" }, "Point at an element, or use the arrow keys in the figure, to see its number.");
  const cursor = svg("rect", { class: "cursor", height: ROW - 8, visibility: "hidden" });
  figure.append(cursor);
  figure.setAttribute("tabindex", "0");
  let place = [0, 1, -1]; // row, column (key or terms), element
  const mark = (x, y, count, element) => {
    const width = STRIP_WIDTH / count;
    for (const [name, value] of Object.entries({ x: round(x + element * width), y, width: round(Math.max(3, width)), visibility: "visible" })) cursor.setAttribute(name, value);
  };
  const showTerm = (row, column, element) => {
    const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
    place = [clamp(row, labels.length), column, 0];
    const [name, x, values] = columns[column];
    place[2] = clamp(element, values[0].length);
    mark(x, 58 + ROW * place[0], values[0].length, place[2]);
    output.textContent = `“${labels[place[0]]}”, ${name}, element ${place[2] + 1}: ${formatNumber(values[place[0]][place[2]], 3)}`;
  };
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect();
    const scale = figure.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    if (y < 30 && x >= left && x < left + STRIP_WIDTH) {
      const element = Math.floor(((x - left) / STRIP_WIDTH) * query.length);
      mark(left, 3, query.length, element);
      output.textContent = `query, element ${element + 1}: ${formatNumber(query[element], 3)}`;
      return;
    }
    const column = columns.findIndex(([, start]) => x >= start && x < start + STRIP_WIDTH);
    const row = Math.floor((y - 55) / ROW);
    if (column >= 0 && row >= 0 && row < labels.length) showTerm(row, column, Math.floor(((x - columns[column][1]) / STRIP_WIDTH) * columns[column][2][0].length));
  });
  figure.addEventListener("keydown", (event) => {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    showTerm(place[0] + by[0], place[1], place[2] + by[1]);
  });
  return output;
}
