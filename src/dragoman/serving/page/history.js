// How the translation of the selected sentence changed in training: a slider over the checkpoints of a run.

import { emptyMessage, failureMessage, formatNumber, formatPercent, html, runSection, svg, toggleGroup } from "./dom.js";
import { figureSvg, framedFigure, round, ticks } from "./figures.js";
import { matrixFigure } from "./matrix_figure.js";
import { runFields, searchConfig } from "./session.js";
import { direction, displayToken, languageTag } from "./tokens.js";
import { markedDifference } from "./word_difference.js";

export const needsSentence = true;

const HINT = "Train with --keep-history 20 to keep the weights of twenty steps from the first on.";
const WIDTH = 560; // pixels
const HEIGHT = 220;
const MARGIN = { left: 52, right: 20, top: 14, bottom: 34 };
const PLAY_INTERVAL = 700; // milliseconds
const entries = new Map(); // request → entry
const MAX_ENTRIES = 400;
let attentionOf = "final"; // whose attention is shown: of the "final" translation, or of the one that was "found"

/** Show the slider and load the checkpoints one by one, so that other requests get their turn. */
export async function show(container, context) {
  const { panels, get, signal } = context;
  container.replaceChildren(emptyMessage("Loading …"));
  const histories = panels.filter((panel) => panel.inspection?.target).map((panel) => ({ panel, steps: [], entries: new Map(), error: "" }));
  try {
    for (const history of histories) {
      const { name } = history.panel.run;
      history.steps = (await get(`/v1/runs/${encodeURIComponent(name)}/checkpoints`, signal)).checkpoints;
    }
  } catch (error) {
    if (!signal.aborted) container.replaceChildren(failureMessage(error.message));
    return;
  }
  if (signal.aborted) return;
  const steps = [...new Set(histories.flatMap((history) => history.steps.map(({ step }) => step)))].sort((a, b) => a - b);
  if (steps.length < 2) {
    container.replaceChildren(emptyMessage(`${steps.length ? "Only one checkpoint" : "No checkpoint"} of this run has been kept, so that its history cannot be shown. ${HINT}`));
    return;
  }
  const view = historyView(container, context, histories, steps);
  await Promise.all(histories.map((history) => loadEntries(history, context, signal, view)));
}

/** Load the entries of a run: the last checkpoint, the first, and then those in between, from coarse to fine. */
async function loadEntries(history, { state, post }, signal, view) {
  const { panel } = history;
  const sentence = panel.sentences[state.sentence];
  for (const { step, checkpoint } of coarseToFine(history.steps)) {
    const fields = { ...runFields(panel.run), text: sentence.source, search: searchConfig(panel.run), checkpoint, translation: panel.inspection.target.text };
    const key = JSON.stringify(fields);
    try {
      if (!entries.has(key)) entries.set(key, (await post("/v1/history", fields, signal)).entry);
      if (entries.size > MAX_ENTRIES) entries.delete(entries.keys().next().value);
      if (signal.aborted) return;
      history.entries.set(step, entries.get(key));
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 400 && step !== history.steps.at(-1).step) history.steps = history.steps.filter((item) => item.step !== step); // a running training has removed it
      else history.error = error.message;
      if (history.error) break;
    }
    view.update();
  }
  view.update();
}

/** Order a list: the last item, the first, then the middles of the gaps. */
function coarseToFine(list) {
  const order = [list.at(-1), list[0]];
  for (let gaps = [[0, list.length - 1]]; gaps.length;) {
    gaps = gaps.flatMap(([low, high]) => {
      const middle = Math.floor((low + high) / 2);
      if (middle === low) return [];
      order.push(list[middle]);
      return [[low, middle], [middle, high]];
    });
  }
  return [...new Set(order)];
}

function historyView(container, { state, panels, change }, histories, steps) {
  let index = steps.findIndex((step) => String(step) === state.trainingStep);
  if (index < 0) index = steps.length - 1;
  const slider = html("input", { type: "range", min: 0, max: steps.length - 1, value: index, id: "history-step", "aria-label": "Training step", input: () => select(Number(slider.value)) });
  const label = html("output", { for: "history-step", class: "figures history-label" });
  let timer = null;
  const play = html("button", { type: "button", title: "Play the training from its first checkpoint", click: () => (timer ? stop() : start()) }, "▶ Play");
  const button = (by, name, sign) => html("button", { type: "button", "aria-label": name, title: name, click: () => select(index + by) }, sign);
  const [previous, next] = [button(-1, "Previous checkpoint", "‹"), button(1, "Next checkpoint", "›")];
  const attention = toggleGroup("Attention", [["final", "Attention of the final translation"], ["found", "Of its own translation"]], attentionOf, (value) => {
    attentionOf = value;
    update();
  });
  const sections = html("div", { class: "panels" });
  container.replaceChildren(
    html("p", { class: "muted history-note" }, "Each checkpoint translates the sentence, and is then forced to generate the final translation. Words that differ from the final translation are marked."),
    html("div", { class: "toolbar" }, play, previous, slider, next, label, attention), sections);

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ Play";
  }
  function start() {
    if (index === steps.length - 1) select(0);
    play.textContent = "❚❚ Pause";
    timer = setInterval(() => (container.contains(play) && index < steps.length - 1 ? select(index + 1, false) : stop()), PLAY_INTERVAL);
  }
  function select(number, stops = true) {
    if (stops && timer) stop();
    index = Math.max(0, Math.min(steps.length - 1, number));
    slider.value = index;
    change({ trainingStep: index === steps.length - 1 ? "" : String(steps[index]) });
    update();
  }
  function update() {
    if (!container.contains(sections)) return stop();
    const step = steps[index];
    label.textContent = `Step ${step.toLocaleString("en")}`;
    slider.setAttribute("aria-valuetext", label.textContent);
    previous.disabled = index === 0;
    next.disabled = index === steps.length - 1;
    const focused = sections.contains(document.activeElement) ? document.activeElement.dataset.step : undefined;
    sections.replaceChildren(...histories.map((history) => runSection(history.panel, panels, ...content(history, step, (chosen) => select(steps.indexOf(chosen))))));
    if (focused !== undefined) sections.querySelector(`button[data-step="${focused}"]`)?.focus();
  }
  update();
  return { update };
}

/** Return the checkpoint at a step of the slider, the probabilities of all steps, and the list of translations. */
function content(history, step, select) {
  const { panel, steps, error } = history;
  const known = steps.filter((item) => history.entries.has(item.step)).map((item) => history.entries.get(item.step));
  const nearest = steps.filter((item) => item.step <= step).at(-1) ?? steps[0];
  const entry = nearest && history.entries.get(nearest.step);
  const parts = [];
  if (error) parts.push(failureMessage(error));
  else if (steps.length < 2) parts.push(emptyMessage(`Only ${steps.length} checkpoint of this run has been kept. ${HINT}`));
  else if (known.length < steps.length) parts.push(html("p", { class: "muted history-note", role: "status" }, `${known.length} of ${steps.length} checkpoints loaded …`));
  if (entry) parts.push(...translationLines(entry, panel));
  else if (!error && steps.length) parts.push(emptyMessage("This checkpoint is being loaded …"));
  const figures = [entry && attentionFigure(entry), known.length > 1 && probabilityFigure(known, nearest.step)].filter(Boolean);
  if (figures.length) parts.push(html("div", { class: "pair history-figures" }, figures));
  if (known.length > 1) parts.push(historyTable(known, nearest.step, panel, select));
  return parts;
}

function translationLines(entry, panel) {
  const language = panel.run.target;
  const perToken = Math.exp(entry.final.score / entry.final.token_scores.length);
  const numbers = [
    entry.found ? `log p ${formatNumber(entry.found.score)}` : "no translation",
    entry.found && !entry.found.finished ? "cut off at the length limit" : "",
    `final translation: log p ${formatNumber(entry.final.score)}, ${formatPercent(perToken)} per token`,
  ];
  return [
    html("p", { class: "history-translation", lang: languageTag(language), dir: direction(language) }, markedDifference(entry.found?.target.text ?? "", entry.final.target.text)),
    html("p", { class: "muted figures" }, numbers.filter(Boolean).join(" · ")),
  ];
}

function attentionFigure(entry) {
  const translation = attentionOf === "found" ? entry.found : entry.final;
  if (!translation?.cross_attention) return emptyMessage(translation ? "This system has no cross-attention." : "There is no translation whose attention could be shown.");
  const [rows, columns] = [translation.target.tokens.map(displayToken), entry.source.tokens.map(displayToken)];
  return framedFigure(`Cross-attention at step ${entry.step.toLocaleString("en")}`, "Which source tokens (columns) each target token (rows) attends to: mean over heads and layers.",
    matrixFigure("Cross-attention", rows, columns, translation.cross_attention), `attention-step-${entry.step}`, () => entry);
}

/** Draw how probable the final translation is at each step; steps on a logarithmic axis. */
function probabilityFigure(known, current) {
  const points = known.map((entry) => [entry.step, Math.exp(entry.final.score / entry.final.token_scores.length)]);
  const scale = (step) => Math.log(step + 1);
  const [bottom, right] = [HEIGHT - MARGIN.bottom, WIDTH - MARGIN.right];
  const [low, high] = [scale(points[0][0]), scale(points.at(-1)[0])];
  const xPosition = (step) => round(MARGIN.left + ((scale(step) - low) / (high - low || 1)) * (right - MARGIN.left));
  const yPosition = (share) => round(bottom - share * (bottom - MARGIN.top));
  const description = `from ${formatPercent(points[0][1])} at step ${points[0][0]} to ${formatPercent(points.at(-1)[1])} at step ${points.at(-1)[0]}`;
  const figure = figureSvg(WIDTH, HEIGHT, "Probability of the final translation", description);
  for (const share of ticks(0, 1)) {
    const y = yPosition(share);
    figure.append(svg("line", { x1: MARGIN.left, x2: right, y1: y, y2: y, class: "rule" }), svg("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end", class: "number" }, formatPercent(share)));
  }
  let lastLabel = -Infinity;
  for (const [step] of points) {
    if (xPosition(step) - lastLabel < 48) continue;
    lastLabel = xPosition(step);
    figure.append(svg("text", { x: lastLabel, y: bottom + 18, "text-anchor": "middle", class: "number" }, step.toLocaleString("en")));
  }
  figure.append(svg("text", { x: right, y: HEIGHT - 5, "text-anchor": "end", class: "faint" }, "step, logarithmic"));
  figure.append(svg("path", { d: `M${points.map(([step, share]) => `${xPosition(step)} ${yPosition(share)}`).join("L")}`, class: "curve series0" }));
  figure.append(...points.map(([step, share]) => svg("circle", { cx: xPosition(step), cy: yPosition(share), r: step === current ? 5 : 2.6, class: "dot series0" }, svg("title", {}, `step ${step}: ${formatPercent(share)}`))));
  figure.append(svg("line", { x1: xPosition(current), x2: xPosition(current), y1: MARGIN.top, y2: bottom, class: "cursor-line" }));
  return framedFigure("Probability of the final translation", "Per token (geometric mean), under each checkpoint.", figure, "history", () => known.map(({ step, final: { score, token_scores: scores } }) => ({ step, score, token_scores: scores })));
}

function historyTable(known, current, panel, select) {
  const language = panel.run.target;
  const rows = known.map((entry) => html("tr", { class: entry.step === current ? "current" : null },
    html("th", { scope: "row" }, html("button", { type: "button", class: "figures", "data-step": entry.step, "aria-current": entry.step === current ? "step" : null, click: () => select(entry.step) }, entry.step.toLocaleString("en"))),
    html("td", { class: "figures" }, formatNumber(entry.final.score)),
    html("td", { class: "text", lang: languageTag(language), dir: direction(language) }, markedDifference(entry.found?.target.text ?? "", entry.final.target.text))));
  const head = ["Step", "log p of the final", "Translation"].map((text) => html("th", { scope: "col" }, text));
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Translations by step" },
    html("table", { class: "history-table" }, html("thead", {}, html("tr", {}, head)), html("tbody", {}, rows)));
}
