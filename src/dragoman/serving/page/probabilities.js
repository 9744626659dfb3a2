// Token probabilities: alternatives at every position, which can be forced to continue the translation from there.

import { dataTable, formatNumber, formatProbability, html, missingMessage, rovingFocus, runSection } from "./dom.js";
import { framedFigure, tokenTable, tokenTableLegend } from "./figures.js";
import { direction, displayToken, startsWord } from "./tokens.js";

export const needsSentence = true;

const MAX_RANKS = 5; // rows of the table
let focusTarget = null; // panel and position that get the focus back after a token was forced

export function show(container, context) {
  container.replaceChildren(html("div", { class: "panels" }, context.panels.map((panel) => runSection(panel, context.panels, ...content(panel, context)))));
  if (focusTarget === null) return;
  const { panel, position } = focusTarget;
  const chips = container.querySelectorAll(`[data-panel="${panel}"] .chip`);
  focusTarget = null;
  chips[Math.min(position, chips.length - 1)]?.focus({ preventScroll: true });
}

function content(panel, { state, force }) {
  const { inspection } = panel;
  const resetButton = () => html("button", { type: "button", click: () => {
    focusTarget = { panel: panel.index, position: 0 };
    force(panel, null);
  } }, "Back to the run's translation");
  if (!inspection) {
    const isForced = panel.error && state.forced[`${panel.index}.${state.sentence}`];
    return [missingMessage(panel, "Loading …"), ...(isForced ? [resetButton()] : [])];
  }
  const { steps, score } = inspection;
  const forceToken = (position, tokenId) => {
    focusTarget = { panel: panel.index, position };
    force(panel, [...steps.slice(0, position).map((step) => step.token_id), tokenId]);
  };
  const chips = html("div", { class: "chips", lang: panel.run.target, dir: direction(panel.run.target), role: "group", "aria-label": "Tokens of the translation" });
  steps.forEach((step, position) => chips.append(tokenChip(step, position, position < panel.forced, () => openAlternatives(chips, panel, position, forceToken))));
  rovingFocus(chips, ".chip");
  const summary = html("p", { class: "muted figures" }, `log p ${formatNumber(score)} · perplexity ${formatNumber(Math.exp(-score / steps.length))} per token`);
  if (panel.forced) summary.append(" · ", html("b", {}, panel.forced === 1 ? "1 token is forced" : `${panel.forced} tokens are forced`), " ", resetButton());
  const figure = alternativesTable(steps);
  figure.addEventListener("click", (event) => {
    const [rank, position] = (event.target.closest("[data-place]")?.dataset.place ?? "").split(",").map(Number);
    if (position >= 0) forceToken(position, steps[position].alternatives[rank].token_id);
  });
  const alternativesText = (step) => step.alternatives.map((other) => `${other.token} ${formatProbability(other.probability)}`).join(", ");
  const copies = inspection.generation_probs.length > 0; // the run can copy source tokens: p_gen is shown
  const table = dataTable(["position", "token", "probability", ...(copies ? ["p_gen"] : []), "rank", "entropy in bits", "alternatives"],
    () => steps.map((step, n) => [n + 1, step.token, formatProbability(step.probability), ...(copies ? [formatProbability(inspection.generation_probs[n])] : []), step.rank, formatNumber(step.entropy), alternativesText(step)]));
  return [
    html("p", { class: "muted" }, "Select a token to see alternatives; select an alternative to continue the translation from there."), chips, summary,
    framedFigure("Most probable tokens at every position", "Tokens of the translation are marked. Probabilities are those of the model, before any constraints of the search.", figure, `alternatives-${panel.run.name}`, () => steps, [table], tokenTableLegend("token of the translation")),
  ];
}

/** Create a button with a token and a bar for its probability. */
function tokenChip(step, position, isForced, click) {
  const token = displayToken(step.token);
  const chip = html("button", {
    type: "button", class: `chip${startsWord(step.token) ? " begins" : ""}${isForced ? " forced" : ""}`, "data-at": position, "aria-haspopup": "dialog",
    "aria-label": `${token}, ${formatProbability(step.probability)}${isForced ? ", forced" : ""}`, click,
  }, html("span", { class: "piece", dir: step.token.startsWith("<") ? "ltr" : null }, token), html("span", { class: "bar" }), html("span", { class: "figures" }, formatProbability(step.probability)));
  chip.style.setProperty("--share", step.probability);
  return chip;
}

/** Open a list of alternatives at a position. */
function openAlternatives(chips, panel, position, forceToken) {
  document.querySelector(".choices")?.remove();
  const step = panel.inspection.steps[position];
  const chip = chips.children[position];
  const isListed = step.alternatives.some((other) => other.token_id === step.token_id);
  const dialog = html("div", { class: "choices", role: "dialog", "aria-label": `Alternatives to ${displayToken(step.token)}` });
  const close = (restoreFocus) => {
    dialog.remove();
    document.removeEventListener("pointerdown", closeOutside);
    if (restoreFocus) chip.focus();
  };
  const closeOutside = (event) => dialog.contains(event.target) || chip.contains(event.target) || close(false);
  dialog.append(...(isListed ? step.alternatives : [...step.alternatives, step]).map((other) => {
    const isCurrent = other.token_id === step.token_id;
    const choose = () => {
      close(true);
      if (!isCurrent) forceToken(position, other.token_id);
    };
    const option = html("button", { type: "button", class: "option", "aria-pressed": String(isCurrent), click: choose },
      html("span", { class: "piece", lang: panel.run.target, dir: "auto" }, displayToken(other.token)), html("span", { class: "bar" }), html("span", { class: "figures" }, formatProbability(other.probability)));
    option.style.setProperty("--share", other.probability);
    return option;
  }));
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "Tab") return;
    event.preventDefault();
    close(true);
  });
  rovingFocus(dialog, ".option");
  chips.after(dialog);
  const [outer, box] = [chips.parentElement.getBoundingClientRect(), chip.getBoundingClientRect()];
  dialog.style.left = `${Math.max(0, Math.min(box.left - outer.left, outer.width - dialog.offsetWidth))}px`;
  dialog.style.top = `${box.bottom - outer.top + 6}px`;
  document.addEventListener("pointerdown", closeOutside);
  (dialog.querySelector("[aria-pressed=true]") ?? dialog.firstChild).focus();
}

function alternativesTable(steps) {
  const rows = Array.from({ length: Math.min(MAX_RANKS, steps[0].alternatives.length) }, (_, rank) => ({
    name: String(rank + 1),
    cells: steps.map((step, position) => {
      const other = step.alternatives[rank];
      const label = formatProbability(other.probability);
      return { text: displayToken(other.token), probability: other.probability, label, chosen: other.token_id === step.token_id, tooltip: `position ${position + 1}, rank ${rank + 1}: “${displayToken(other.token)}” has probability ${label}` };
    }),
  }));
  return tokenTable("Most probable tokens at every position", steps.map((_, n) => n + 1), rows, steps.map((step) => `${displayToken(step.token)} ${formatProbability(step.probability)}`).join(", "));
}
