// Decoding: how temperature, top-k, top-p, beam size and penalties change the next token and the translation.

import { debounce, emptyMessage, failureMessage, formatNumber, formatProbability, html, missingMessage, rovingFocus, runSection, svg, toggleGroup } from "./dom.js";
import { figureSvg, framedFigure, labelWidth, round, shorten, swatchLegend } from "./figures.js";
import { entropy, samplingProbabilities } from "./sampling.js";
import { direction, displayToken } from "./tokens.js";
import { requestWalk } from "./walk_requests.js";

export const needsSentence = true;

const NUM_SHOWN = 12; // tokens of the distribution
const NUM_HYPOTHESES = 5;
const MIN_WIDE_PAGE = 600; // pixels; on narrower ones the bars are shorter, so that the text keeps its size
const DELAY = 150; // milliseconds after the last change of a slider
// state field: [label, lowest, highest, step, explanation]
const SAMPLING = {
  temperature: ["Temperature", 0.1, 2.5, 0.05, "below 1: bolder, above 1: more surprising"],
  topK: ["Top-k", 1, 51, 1, "only the k most probable tokens"],
  topP: ["Top-p", 0.05, 1, 0.05, "only the most probable tokens with this share together"],
};
const BEAM = {
  beamSize: ["Beam size", 1, 12, 1, "hypotheses that are continued at every step"],
  lengthPenalty: ["Length penalty", -1, 3, 0.1, "larger: prefers longer translations"],
  coveragePenalty: ["Coverage penalty", 0, 2, 0.1, "larger: punishes source words without attention"],
};

/** Return the settings of the sliders: what the user has chosen, or the defaults of the run. */
function settingsOf(state, run) {
  const search = run.search.kind === "Beam" ? run.search : { size: 5, length_penalty: 1, coverage_penalty: 0 };
  const chosen = (name, byDefault) => (state[name] === "" || !Number.isFinite(Number(state[name])) ? byDefault : Number(state[name]));
  return {
    temperature: chosen("temperature", run.search.temperature ?? 1), topK: chosen("topK", run.search.top_k ?? 51), topP: chosen("topP", run.search.top_p ?? 1),
    beamSize: chosen("beamSize", search.size), lengthPenalty: chosen("lengthPenalty", search.length_penalty), coveragePenalty: chosen("coveragePenalty", search.coverage_penalty),
  };
}

const isOff = (name, value) => (name === "topK" && value > 50) || (name === "topP" && value >= 1);
const truncation = ({ temperature, topK, topP }) => ({ temperature, topK: isOff("topK", topK) ? null : topK, topP: isOff("topP", topP) ? null : topP });

/** Return the search of a request with the settings of the sliders. */
export function searchOf(state, run) {
  const settings = settingsOf(state, run);
  if (state.decoding === "sampling") {
    const { temperature, topK, topP } = truncation(settings);
    return { kind: "Sample", temperature, ...(topK === null ? {} : { top_k: topK }), ...(topP === null ? {} : { top_p: topP }), n_best: NUM_HYPOTHESES, seed: state.seed };
  }
  const { beamSize, lengthPenalty, coveragePenalty } = settings;
  const defaults = run.search.kind === "Beam" ? run.search : { kind: "Beam" };
  return { ...defaults, size: beamSize, length_penalty: lengthPenalty, coverage_penalty: coveragePenalty, num_groups: 1, num_finished: null, n_best: Math.min(NUM_HYPOTHESES, beamSize) };
}

export function show(container, context) {
  const { state, panels, change } = context;
  const sections = panels.map((panel) => ({ panel, ...panelParts(panel, context) }));
  const update = debounce(DELAY, () => sections.forEach((section) => section.translate()));
  const react = (patch) => {
    change(patch);
    for (const section of sections) section.draw();
    update();
  };
  const controls = state.decoding === "sampling" ? SAMPLING : BEAM;
  const rebuild = (patch, selector) => {
    change(patch);
    show(container, context);
    container.querySelector(selector)?.focus();
  };
  const none = Object.fromEntries([...Object.keys(SAMPLING), ...Object.keys(BEAM)].map((name) => [name, ""]));
  container.replaceChildren(
    html("div", { class: "toolbar" },
      toggleGroup("Decoding", [["beam", "Beam search"], ["sampling", "Sampling"]], state.decoding, (decoding) => rebuild({ decoding }, ".toolbar [aria-pressed=true]")),
      html("button", { type: "button", id: "decoding-reset", click: () => rebuild({ ...none, seed: 0 }, "#decoding-reset") }, "Reset to the run's defaults"),
      state.decoding === "sampling" ? html("button", { type: "button", click: () => react({ seed: state.seed + 1 }) }, "Draw again") : null),
    html("div", { class: "sliders" }, Object.entries(controls).map(([name, control]) => slider(name, control, settingsOf(state, panels[0].run)[name], (value) => react({ [name]: String(value) })))),
    html("div", { class: "panels" }, sections.map(({ panel, element }) => runSection(panel, panels, element))));
  for (const section of sections) section.translate();
}

/** Create a labeled slider with its value and an explanation. */
function slider(name, [label, min, max, step, explanation], value, onInput) {
  const format = (number) => (isOff(name, number) ? "off" : String(Number(number.toFixed(2))).replace("-", "−"));
  const output = html("output", { class: "figures", for: `slider-${name}` }, format(value));
  const input = html("input", { type: "range", id: `slider-${name}`, min, max, step, "aria-describedby": `about-${name}`, "aria-valuetext": format(value), input: () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    onInput(Number(input.value));
  } });
  input.value = value;
  return html("div", { class: "slider" }, html("label", { for: `slider-${name}` }, label), output, input, html("p", { class: "muted", id: `about-${name}` }, explanation));
}

/** Create the distribution of the next token and the list of translations of one run. */
function panelParts(panel, { state, change, post }) {
  const { inspection, run } = panel;
  if (!inspection?.steps.length) return { element: missingMessage(panel, inspection ? "This system generates no tokens." : "Loading …"), draw() {}, translate() {} };
  const tokens = html("div", { class: "token-row", role: "group", "aria-label": "Token to predict", lang: run.target, dir: direction(run.target) });
  const chart = html("div", {}, emptyMessage("Loading …"));
  const results = html("div", { class: "decoded", "aria-live": "polite" });
  let walk = null;
  let latest = 0;
  const current = () => Math.min(state.walkStep, inspection.steps.length - 1);

  function draw() {
    if (walk) chart.replaceChildren(distributionFigure(walk, inspection.steps[current()], state.decoding === "sampling" ? truncation(settingsOf(state, run)) : null, run.name));
  }
  async function load() {
    const step = current();
    try {
      const found = await requestWalk(panel, { step }, post);
      if (step !== current()) return; // another token was selected in the meantime
      walk = found;
      draw();
    } catch (error) {
      chart.replaceChildren(failureMessage(error.message));
    }
  }
  async function translate() {
    const number = ++latest;
    const languages = run.languages.length ? { source: run.source, target: run.target } : {};
    try {
      const response = await post("/v1/translate", { run: run.name, ...languages, text: inspection.source.text, search: searchOf(state, run) });
      if (number === latest) results.replaceChildren(hypothesisTable(response.translations[0].sentences, inspection.target.text, searchOf(state, run), run));
    } catch (error) {
      if (number === latest) results.replaceChildren(failureMessage(error.message));
    }
  }
  inspection.steps.forEach((step, n) => tokens.append(html("button", { type: "button", "aria-pressed": String(n === current()), click: (event) => {
    change({ walkStep: n });
    for (const other of tokens.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
    load();
  } }, displayToken(step.token))));
  rovingFocus(tokens, "button");
  load();
  const element = html("div", { class: "decoding" }, html("div", {}, html("h3", {}, "Translations with these settings"), results),
    html("div", {}, html("div", { class: "token-choice" }, html("span", { class: "name" }, "Token to predict"), tokens), chart));
  return { element, draw, translate: inspection.source ? translate : () => {} };
}

/** Create a table of the hypotheses of a text; those of several sentences are joined. */
function hypothesisTable(sentences, inspected, search, run) {
  const count = Math.min(...sentences.map((sentence) => sentence.hypotheses.length));
  const rows = Array.from({ length: count }, (_, n) => sentences.map((sentence) => sentence.hypotheses[n]));
  return html("table", { class: "figures" },
    html("thead", {}, html("tr", {}, ["rank", "translation", "log p", "tokens"].map((text) => html("th", { scope: "col" }, text)))),
    html("tbody", {}, rows.map((parts, n) => {
      const text = parts.map((part) => part.text).join(" ");
      return html("tr", { class: n === 0 ? "chosen" : null }, html("td", {}, n + 1), html("th", { scope: "row", lang: run.target, dir: "auto" }, text, text === inspected ? html("span", { class: "muted" }, " (as inspected)") : null),
        html("td", {}, formatNumber(parts.reduce((sum, part) => sum + part.score, 0))), html("td", {}, parts.reduce((sum, part) => sum + part.tokens.length, 0)));
    })));
}

/** Draw the probabilities of the model and, for sampling, those that are drawn from. */
function distributionFigure(walk, predicted, settings, run) {
  const model = samplingProbabilities(walk.logits);
  const drawn = samplingProbabilities(walk.logits, { ...settings, suppressed: walk.suppressed });
  const names = walk.candidates.slice(0, NUM_SHOWN).map((one) => displayToken(one.token));
  const left = labelWidth(names, 16) + 14;
  const [width, row] = [innerWidth < MIN_WIDE_PAGE ? 170 : 320, settings ? 34 : 26];
  const figure = figureSvg(left + width + 80, row * names.length + 4, "Distribution of the next token", names.map((name, n) => `${name} ${formatProbability((settings ? drawn : model)[n])}`).join(", "));
  names.forEach((name, n) => {
    const y = row * n + 2;
    const isCut = settings && drawn[n] === 0;
    const [high, low] = settings ? [14, 9] : [18, 0];
    figure.append(svg("g", { class: isCut ? "cut" : null, "data-rank": n },
      svg("title", {}, `“${name}”: ${formatProbability(model[n])} in the model${settings ? `, ${isCut ? "left out" : formatProbability(drawn[n])} in sampling` : ""}`),
      svg("text", { x: left - 8, y: y + 14, "text-anchor": "end", class: walk.candidates[n].token_id === predicted.token_id ? "bold" : null }, shorten(name, 16)),
      svg("rect", { x: left, y, width: round(width * (settings ? drawn : model)[n]), height: high, rx: 2, class: "bar-fill" }),
      settings ? svg("rect", { x: left, y: y + high + 2, width: round(width * model[n]), height: low, rx: 2, class: "plain", "fill-opacity": 0.5 }) : null,
      svg("text", { x: round(left + 8 + width * (settings ? drawn : model)[n]), y: y + 13, "data-probability": n }, isCut ? "left out" : formatProbability((settings ? drawn : model)[n]))));
  });
  const kept = drawn.filter((p) => p > 0).length;
  const bits = `entropy ${formatNumber(entropy(model))} bits`;
  const note = settings ? `${kept.toLocaleString("en")} of ${walk.logits.length.toLocaleString("en")} tokens can be drawn; ${bits} in the model, ${formatNumber(entropy(drawn))} bits in sampling.` : `Beam search uses the probabilities of the model; ${bits}.`;
  const bar = (name, opacity) => (x, y) => svg("rect", { x, y, width: 16, height: 12, rx: 2, class: name, "fill-opacity": opacity });
  const legend = swatchLegend(settings ? [{ text: "drawn from", shape: bar("bar-fill", 1) }, { text: "probability of the model", shape: bar("plain", 0.5) }] : [{ text: "probability of the model", shape: bar("bar-fill", 1) }]);
  return framedFigure(`The next token at position ${walk.inputs.length}`, note, figure, `distribution-${run}`, () => ({ candidates: walk.candidates, model: model.slice(0, 50), drawn: drawn.slice(0, 50) }), [], legend);
}
