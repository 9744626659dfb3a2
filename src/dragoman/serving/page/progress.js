// The progress of a training: its state, numbers and warnings, and the translations of validation sentences.

import { html } from "./dom.js";
import { markedDifference } from "./word_difference.js";

const STATES = {
  preparing: "The data are being prepared", training: "Training", finished: "Finished", interrupted: "Interrupted",
  failed: "Failed", stopped: "Stopped", unknown: "",
};
const MAX_SHOWN_CHANGES = 6;

const formatCount = (value) => Math.round(value).toLocaleString("en");

/** Format seconds as 1 h 5 min, 3 min 20 s or 12 s. */
export function formatSeconds(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

/** Update a part of the page without losing the focus of one of its elements, which is found again by its label. */
export function keepFocus(element, update) {
  const { activeElement } = document;
  const label = element.contains(activeElement) ? activeElement.getAttribute("aria-label") : null;
  const open = new Set([...element.querySelectorAll("details[open]")].map((details) => details.dataset.key).filter(Boolean));
  const scroll = [...element.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
  update();
  for (const details of element.querySelectorAll("details")) if (open.has(details.dataset.key)) details.open = true;
  element.querySelectorAll(".scroll").forEach((region, n) => { region.scrollLeft = scroll[n] ?? 0; });
  if (label) element.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
}

/** Return a bar, the numbers of the latest steps, warnings and the latest messages. */
export function statusParts(progress) {
  const { state, step, total_steps: total, fraction_done: fraction, seconds_left: left, latest, validation } = progress;
  const title = [STATES[state] ?? state, progress.reason].filter(Boolean).join(": ");
  const numbers = [
    ["step", total ? `${formatCount(step)} of ${formatCount(total)}` : formatCount(step)],
    ["epoch", progress.epoch && formatCount(progress.epoch)],
    ["time left", left !== null && left !== undefined && state === "training" && formatSeconds(left)],
    ["elapsed", latest?.seconds !== undefined && formatSeconds(latest.seconds)],
    ["training loss", latest?.loss?.toFixed(3)],
    ...Object.entries(validation ?? {}).map(([name, value]) => [name === "loss" ? "validation loss" : name, value.toFixed(name === "loss" ? 3 : 1)]),
    ["target tokens/s", latest?.tokens_per_second && formatCount(latest.tokens_per_second)],
    ["learning rate", latest?.learning_rate?.toPrecision(3)],
    ["gradient norm", latest?.gradient_norm?.toPrecision(3)],
    ["padding", latest?.padding !== undefined && latest.padding !== null && `${(100 * latest.padding).toFixed(0)} %`],
  ].filter(([, value]) => value);
  const bar = fraction === null || fraction === undefined ? null : html("progress", { max: 1, value: fraction, "aria-label": "Share of the training that is done" });
  return [
    html("p", { class: `training-state ${state}`, role: "status" }, title),
    bar,
    html("dl", { class: "training-numbers figures" }, numbers.map(([name, value]) => html("div", {}, html("dt", { class: "muted" }, name), html("dd", {}, value)))),
    ...(progress.warnings ?? []).map((text) => html("p", { class: "notice" }, `Warning: ${text}.`)),
    messageList(progress.messages ?? []),
  ].filter(Boolean);
}

function messageList(messages) {
  if (!messages.length) return null;
  const item = ({ time, step, text }) => html("li", {}, html("span", { class: "muted figures" }, `${new Date(1000 * time).toLocaleTimeString()} · step ${formatCount(step)}`), ` ${text}`);
  return html("details", { class: "numbers", "data-key": "messages" }, html("summary", {}, `Messages (${messages.length})`), html("ul", { class: "training-messages" }, [...messages].reverse().map(item)));
}

/** Return the validation sentences with the steps at which their translation changed; words not in the reference are marked. */
export function sentenceParts(progress, runName = "") {
  if (!progress.sentences?.length) return [];
  const change = (reference) => ({ step, translation }) => html("li", {}, html("span", { class: "muted figures" }, `step ${formatCount(step)} `), markedDifference(translation, reference));
  const sentences = progress.sentences.map(({ source, reference, changes }, n) => {
    const [recent, earlier] = [changes.slice(-MAX_SHOWN_CHANGES), changes.slice(0, -MAX_SHOWN_CHANGES)];
    return html("li", {},
      html("p", { dir: "auto", class: "validation-source" }, source),
      html("p", { dir: "auto", class: "muted" }, `Reference: ${reference}`),
      earlier.length ? html("details", { class: "numbers", "data-key": `${runName} sentence ${n}` }, html("summary", {}, `${earlier.length} earlier translations`), html("ol", {}, earlier.map(change(reference)))) : null,
      html("ol", {}, recent.map(change(reference))));
  });
  return [
    html("h3", { class: "validation-title" }, runName ? `Validation sentences of ${runName}` : "Validation sentences"),
    html("p", { class: "muted training-note" }, "Each translation with the step at which it appeared. Words that are not in the reference are marked."),
    html("ol", { class: "validation-sentences" }, sentences),
  ];
}
