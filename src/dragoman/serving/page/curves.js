// Training curves of one run, or of two runs in the same charts.

import { downloadPage, hasApiKey } from "./api.js";
import { dataTable, emptyMessage, failureMessage, html, svg } from "./dom.js";
import { figureSvg, framedFigure, round, ticks } from "./figures.js";
import { keepFocus, sentenceParts, statusParts } from "./progress.js";

export const needsSentence = false;

const CHARTS = [ // title, note, names of the curves
  ["Loss", "−log p per target token; lower is better. If validation rises while training falls, the model overfits.", ["training loss", "validation loss"]],
  ["BLEU", "Of validation sentences; higher is better.", ["BLEU"]],
  ["Exact match", "Validation sentences that equal the reference, in %.", ["exact match"]],
  ["chrF and ROUGE", "Of validation sentences; higher is better.", ["chrF", "chrF++", "ROUGE-1", "ROUGE-2", "ROUGE-L"]],
  ["Error rate", "Of validation sentences, in %; lower is better.", ["symbol error rate", "phoneme error rate", "character error rate", "word error rate", "item error rate", "TER"]],
  ["Accuracy", "Tokens that are the most probable ones, in %.", ["accuracy"]],
  ["Learning rate", "", ["learning rate"]],
  ["Gradient norm", "Before clipping. Sudden peaks announce a divergence.", ["gradient norm"]],
  ["Speed", "Target tokens per second.", ["tokens per second"]],
];
const PERCENTAGES = ["BLEU", "chrF", "exact match", "accuracy"]; // first curves of charts from 0 to 100
const WIDTH = 560; // pixels
const HEIGHT = 250;
const MARGIN = { left: 52, right: 30, top: 14, bottom: 36 };
const cache = new Map(); // run → its progress
const POLL_INTERVAL = 3000; // milliseconds, while a run is being trained

/** Show the training of the runs; that of a run in training is updated until another view is shown. */
export async function show(container, { panels, get, signal }) {
  const names = panels.map((panel) => panel.run.name);
  if (!names.every((name) => cache.has(name))) container.replaceChildren(emptyMessage("Loading …"));
  const load = async (name) => cache.set(name, await get(`/v1/runs/${encodeURIComponent(name)}/progress`, signal));
  try {
    await Promise.all(names.map(load));
  } catch (error) {
    if (!signal.aborted) container.replaceChildren(failureMessage(error.message));
    return;
  }
  if (signal.aborted) return;
  const view = html("div", { class: "training-view" });
  const update = () => view.replaceChildren(...trainingContent(panels));
  update();
  container.replaceChildren(view);
  while (names.some((name) => ["preparing", "training"].includes(cache.get(name).state))) {
    await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
    if (signal.aborted || !container.contains(view)) return;
    await Promise.all(names.map(load)).then(() => keepFocus(view, update), () => null);
  }
}

/** Return the state of the trainings, if they are running, their charts, and a link to the report. */
function trainingContent(panels) {
  const compares = panels.length > 1;
  const parts = [];
  for (const { run } of panels) {
    const progress = cache.get(run.name);
    if (progress.state === "training") parts.push(...(compares ? [html("h3", { class: "run-name" }, run.name)] : []), ...statusParts(progress));
    if (progress.report) parts.push(html("p", { class: "report-link" }, reportLink(run.name, compares)));
  }
  const charts = curveCharts(panels.map(({ run, index }) => ({ name: run.name, index, curves: cache.get(run.name).curves })));
  parts.push(html("div", { class: "gallery" }, charts.length ? charts : [emptyMessage("The run folder has no training metrics.")]));
  for (const { run } of panels) parts.push(...sentenceParts(cache.get(run.name), compares ? run.name : ""));
  return parts;
}

/** A link to the report of a run: it opens in another tab; with an API key, which a link cannot send, it is downloaded. */
function reportLink(name, compares) {
  const address = `/v1/runs/${encodeURIComponent(name)}/report`;
  return html("a", { href: `.${address}`, target: "_blank", rel: "noopener", click: (event) => hasApiKey() && (event.preventDefault(), downloadPage(address, `${name}-report.html`)) }, compares ? `Report of ${name}` : "Report of this training");
}

/** Draw the curves of runs in common charts: loss, metrics, learning rate, gradient norm, speed. */
export function curveCharts(runs) {
  const compares = runs.length > 1;
  const curveNames = runs[0].curves.map((curve) => curve.name); // the metric that selects checkpoints first
  const rank = ([, , names]) => Math.min(curveNames.length, ...names.map((name) => curveNames.indexOf(name)).filter((index) => index >= 0));
  return [...CHARTS].sort((a, b) => rank(a) - rank(b)).map(([title, note, names]) => {
    const series = runs.flatMap((run) => run.curves.filter((curve) => names.includes(curve.name)).map(({ name, points }) => {
      const curveName = names.length > 1 ? name.replace(" loss", "") : compares ? "" : name;
      return { points, panel: run.index, isTraining: name === "training loss", name: [compares ? run.name : "", curveName].filter(Boolean).join(", ") };
    }));
    return series.length ? chart(title, note, series, PERCENTAGES.includes(names[0])) : null;
  }).filter(Boolean);
}

function chart(title, note, series, isPercentage) {
  const points = series.flatMap((curve) => curve.points);
  const values = points.map(([, y]) => y);
  const xTicks = ticks(0, Math.max(...points.map(([x]) => x)), 6);
  const yTicks = isPercentage ? ticks(0, 100) : ticks(Math.min(0, ...values), Math.max(...values));
  const [bottom, right] = [HEIGHT - MARGIN.bottom, WIDTH - MARGIN.right];
  const xPosition = (x) => MARGIN.left + (x / xTicks.at(-1)) * (right - MARGIN.left);
  const yPosition = (y) => bottom - ((y - yTicks[0]) / (yTicks.at(-1) - yTicks[0])) * (bottom - MARGIN.top);
  const description = series.map((curve) => `${curve.name} ends at ${formatValue(curve.points.at(-1)[1])}`).join("; ");
  const figure = figureSvg(WIDTH, HEIGHT + 22 * Math.ceil(series.length / 2), title, description);
  for (const y of yTicks) {
    const position = round(yPosition(y));
    figure.append(svg("line", { x1: MARGIN.left, x2: right, y1: position, y2: position, class: "rule" }), svg("text", { x: MARGIN.left - 8, y: position + 4, "text-anchor": "end", class: "number" }, formatValue(y)));
  }
  for (const x of xTicks) figure.append(svg("text", { x: round(xPosition(x)), y: bottom + 20, "text-anchor": "middle", class: "number" }, x.toLocaleString("en")));
  figure.append(svg("text", { x: right, y: HEIGHT - 5, "text-anchor": "end", class: "faint" }, "step"));
  series.forEach((curve, n) => {
    const positions = curve.points.map(([x, y]) => [round(xPosition(x)), round(yPosition(y))]);
    const style = `curve series${curve.panel}${curve.isTraining ? " training" : ""}`;
    figure.append(svg("path", { d: `M${positions.map((position) => position.join(" ")).join("L")}`, class: style }));
    if (positions.length < 40) figure.append(...positions.map(([cx, cy]) => svg("circle", { cx, cy, r: 2.6, class: `dot series${curve.panel}` })));
    const [x, y] = [MARGIN.left + (n % 2) * 250, HEIGHT + 12 + 22 * Math.floor(n / 2)];
    figure.append(svg("line", { x1: x, x2: x + 26, y1: y - 4, y2: y - 4, class: style }), svg("text", { x: x + 34, y, class: "faint" }, curve.name));
  });
  addCursor(figure, series, xPosition);
  return framedFigure(title, note, figure, title.toLowerCase().replace(" ", "-"), () => series.map(({ name, points: curve }) => ({ name, points: curve })),
    [dataTable(["step", ...series.map((curve) => curve.name)], () => tableRows(series))]);
}

/** Show the values at the step under the pointer. */
function addCursor(figure, series, xPosition) {
  const line = svg("line", { class: "cursor-line", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
  const label = svg("text", { x: WIDTH - MARGIN.right, y: 12, "text-anchor": "end", class: "number bold" });
  figure.append(line, label);
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const distance = (point) => Math.abs(xPosition(point[0]) - x);
    const nearest = series.map((curve) => curve.points.reduce((best, point) => (distance(point) < distance(best) ? point : best)));
    for (const name of ["x1", "x2"]) line.setAttribute(name, round(xPosition(nearest.at(-1)[0])));
    line.setAttribute("visibility", "visible");
    label.textContent = `step ${Math.round(nearest.at(-1)[0]).toLocaleString("en")}: ${nearest.map(([, y]) => formatValue(y)).join(" · ")}`;
  });
  figure.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    label.textContent = "";
  });
}

function tableRows(series) {
  const steps = [...new Set(series.flatMap((curve) => curve.points.map(([step]) => step)))].sort((a, b) => a - b);
  const values = series.map((curve) => new Map(curve.points));
  return steps.map((step) => [Math.round(step), ...values.map((map) => (map.has(step) ? formatValue(map.get(step)) : ""))]);
}

const formatValue = (value) => (value === 0 ? "0" : Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3))));
