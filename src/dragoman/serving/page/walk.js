// A walk through the model: how one token of the translation is predicted, with the numbers of every layer.

import { emptyMessage, failureMessage, formatNumber, formatProbability, html, missingMessage, rovingFocus, runSection, select } from "./dom.js";
import { direction, displayToken } from "./tokens.js";
import { barList, stripFigure } from "./strips.js";
import { requestWalk } from "./walk_requests.js";

export const needsSentence = true;

const PLAY_INTERVAL = 2500; // milliseconds per step
const NUM_CANDIDATES = 10;
const OUTPUT = {
  place: "output layer", name: "logits", formula: "W h + b", keys: [],
  explanation: "The last vector is compared with the vector of every token of the vocabulary: one score per token, the logit.",
};
const DISTRIBUTION = {
  place: "output layer", name: "probabilities", formula: "softmax(logits)", keys: [],
  explanation: "The softmax turns logits into probabilities that sum to 100 %. The search continues from here.",
};
let timer = null; // of the playback

export function show(container, context) {
  clearInterval(timer);
  container.replaceChildren(html("div", { class: "panels" }, context.panels.map((panel) => runSection(panel, context.panels, panelView(panel, context)))));
}

/** Create buttons of tokens, one of which is selected. */
function tokenRow(label, tokens, selected, language, onSelect) {
  const row = html("div", { class: "token-row", role: "group", "aria-label": label, lang: language, dir: direction(language) });
  tokens.forEach((token, n) => row.append(html("button", { type: "button", "aria-pressed": String(n === selected), click: () => onSelect(n) }, displayToken(token))));
  rovingFocus(row, "button");
  return html("div", { class: "token-choice" }, html("span", { class: "name" }, label), row);
}

function panelView(panel, context) {
  const { inspection } = panel;
  if (!inspection?.steps.length) return missingMessage(panel, inspection ? "This system predicts no tokens, so there is nothing to follow." : "Loading …");
  const view = html("div", { class: "walk" }, emptyMessage("Loading …"));
  load(view, panel, context);
  return view;
}

async function load(view, panel, context) {
  const { state, change, post } = context;
  const { inspection } = panel;
  const step = Math.min(state.walkStep, inspection.steps.length - 1);
  const position = Math.min(state.walkPosition, Math.max(0, (inspection.source?.tokens.length ?? 1) - 1));
  const choice = () => [state.walkStep, state.walkPosition, state.walkHead].join();
  const chosen = choice();
  let walk;
  try {
    walk = await requestWalk(panel, { step, position, head: Math.max(1, state.walkHead) }, post);
  } catch (error) {
    if (state.walkHead > 1 && error.status === 400) { // the other run has fewer heads
      change({ walkHead: 1 });
      load(view, panel, context);
    } else view.replaceChildren(failureMessage(error.message));
    return;
  }
  if (chosen !== choice()) { // something else was selected in the meantime
    await load(view, panel, context);
    return;
  }
  const update = (patch, selector) => {
    change(patch);
    load(view, panel, context).then(() => view.querySelector(selector)?.focus());
  };
  const toolbar = html("div", { class: "walk-choices" },
    tokenRow("Token to predict", inspection.steps.map((one) => one.token), step, panel.run.target, (walkStep) => update({ walkStep }, ".token-choice:first-child [aria-pressed=true]")),
    walk.steps.some((one) => one.place.startsWith("encoder")) ? tokenRow("Source token", walk.source, position, panel.run.source, (walkPosition) => update({ walkPosition }, ".token-choice:nth-child(2) [aria-pressed=true]")) : null,
    walk.num_heads > 1 ? select("Attention head", Array.from({ length: walk.num_heads }, (_, n) => [n + 1, n + 1]), walk.head, (value) => update({ walkHead: Number(value) }, ".choice select")) : null);
  view.replaceChildren(toolbar, ...stages(view, walk, inspection.steps[step], state, change));
}

/** Create the list of layers, the buttons, and the steps of the present layer up to the present one. */
function stages(view, walk, predicted, state, change) {
  const steps = [...walk.steps, OUTPUT, DISTRIBUTION];
  const places = [...new Set(steps.map((one) => one.place))];
  let at = Math.min(state.walkAt, steps.length - 1);
  const button = (label, sign, click) => html("button", { type: "button", "aria-label": label, title: label, click }, sign);
  const back = button("Previous step", "◀", () => goTo(at - 1));
  const next = button("Next step", "▶", () => goTo(at + 1));
  const play = html("button", { type: "button", class: "play", click: () => (timer ? pause() : start()) }, "Play");
  const status = html("output", { class: "figures" });
  const list = html("ol", { class: "places", "aria-label": "Layers" }, places.map((place) => html("li", {}, html("button", { type: "button", click: () => goTo(steps.findIndex((one) => one.place === place)) }, place))));
  const cards = html("div", { class: "cards", tabindex: "0", role: "group", "aria-label": "Steps of the computation: left and right go back and forth" });
  rovingFocus(list, "button");
  const headline = html("p", { class: "walk-headline" });

  function goTo(target, isMoved = true) {
    at = Math.max(0, Math.min(steps.length - 1, target));
    change({ walkAt: at });
    const { place } = steps[at];
    const first = steps.findIndex((one) => one.place === place);
    const shown = cards.dataset.place === place ? cards.children.length : 0;
    if (!shown) cards.replaceChildren();
    cards.dataset.place = place;
    while (cards.children.length > at - first + 1) cards.lastChild.remove();
    for (let n = first + cards.children.length; n <= at; n++) cards.append(card(steps[n], walk, predicted, n));
    for (const [n, item] of [...cards.children].entries()) item.classList.toggle("current", first + n === at);
    places.forEach((name, n) => list.children[n].firstChild.setAttribute("aria-current", name === place ? "step" : "false"));
    scrollList(list, list.children[places.indexOf(place)]);
    if (isMoved) cards.lastChild.scrollIntoView({ block: "nearest" });
    status.textContent = `step ${at + 1} of ${steps.length}`;
    back.setAttribute("aria-disabled", String(at === 0));
    next.setAttribute("aria-disabled", String(at === steps.length - 1));
    const subject = place.startsWith("encoder") ? `source token “${displayToken(walk.source[walk.position])}”` : `“${displayToken(walk.inputs.at(-1))}” → ?`;
    headline.replaceChildren(html("b", {}, place), ` · ${subject}`);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  function start() {
    if (at === steps.length - 1) goTo(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (!view.isConnected || at === steps.length - 1) pause();
      else goTo(at + 1);
    }, PLAY_INTERVAL);
  }
  cards.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!by || event.target !== cards) return;
    event.preventDefault();
    goTo(at + by);
  });
  clearInterval(timer);
  timer = null;
  const controls = html("div", { class: "toolbar" },
    html("div", { class: "group", role: "group", "aria-label": "Steps" }, button("First step", "|◀", () => goTo(0)), back, next, button("Last step", "▶|", () => goTo(steps.length - 1))), play, status);
  goTo(at, false);
  requestAnimationFrame(() => scrollList(list, list.querySelector("[aria-current=step]").parentElement));
  return [controls, html("div", { class: "walk-body" }, list, html("div", {}, headline, cards))];
}

/** Scroll a list, but not the page, so that one of its items is in the middle. */
function scrollList(list, item) {
  const [box, frame] = [item.getBoundingClientRect(), list.getBoundingClientRect()];
  list.scrollTop += box.top - frame.top - (frame.height - box.height) / 2;
  list.scrollLeft += box.left - frame.left - (frame.width - box.width) / 2;
}

/** Create the card of a step: its name, formula, explanation and numbers. */
function card(step, walk, predicted, number) {
  const head = step.of_head && walk.num_heads > 1 ? ` (head ${walk.head})` : "";
  const omitted = Array.isArray(step.values?.[0]) ? walkedKeys(step, walk) : "";
  return html("article", { class: "card-step", "data-name": step.name },
    html("h3", {}, `${number + 1}. ${step.name}${head} `, html("code", {}, step.formula)), html("p", {}, step.explanation, omitted), numbers(step, walk, predicted));
}

/** Say how many of the keys are shown if it is not all of them. */
function walkedKeys(step, walk) {
  const all = walk.steps.find((one) => one.path === step.path && one.name === "scores")?.values.length ?? step.keys.length;
  return all > step.keys.length ? ` The ${step.keys.length} of ${all} keys with the largest weights are shown.` : "";
}

function numbers(step, walk, predicted) {
  if (step === OUTPUT || step === DISTRIBUTION) return candidates(step, walk, predicted);
  const labels = step.key_labels.map(displayToken);
  if (step.keys.length && !Array.isArray(step.values[0])) return barList(step.name, labels, step.values, step.name === "attention weights");
  return stripFigure(step.name, step.values, labels);
}

function candidates(step, walk, predicted) {
  const best = walk.candidates.slice(0, NUM_CANDIDATES);
  const labels = best.map((one) => (one.token_id === predicted.token_id ? `→ ${displayToken(one.token)}` : displayToken(one.token)));
  const values = best.map((one) => (step === OUTPUT ? one.logit : one.probability));
  const note = step === OUTPUT ? `${walk.logits.length.toLocaleString("en")} logits; the ten largest:` : `The translation has “${displayToken(predicted.token)}” here: ${formatProbability(predicted.probability)}, log p ${formatNumber(predicted.log_probability, 3)}.`;
  return html("div", {}, html("p", { class: "muted" }, note), barList(step.name, labels, values, step === DISTRIBUTION));
}
