// Inspections of sentences: requests for the panels, forced tokens and the user's translation.

import { post } from "./api.js";
import { byId, debounce } from "./dom.js";
import { updateViews } from "./frame.js";
import { showError, showNotice } from "./notices.js";
import { TYPING_DELAY, change, page, runFields, searchConfig } from "./session.js";
import { joinTokens } from "./tokens.js";
import { scrollToSelected, updateTranslations } from "./translation.js";

const MAX_CACHED_INSPECTIONS = 60;
const inspectionCache = new Map(); // request → response
const userTranslations = new Map(); // source sentence → the user's translation

export const onTranslationTyped = debounce(TYPING_DELAY, () => {
  change({ translation: byId("user-translation").value, step: 0, word: "" });
  userTranslations.delete(page.panels[0].sentences[page.state.sentence]?.source);
  for (const panel of page.panels) inspect(panel);
});

/** Send the user's translation of the selected sentence to the operator of the service. */
export async function suggestTranslation() {
  onTranslationTyped.flush();
  const { run, sentences } = page.panels[0];
  const button = byId("suggest");
  button.disabled = true;
  try {
    await post("/suggest", { q: sentences[page.state.sentence].source, s: page.state.translation.trim(), source: run.source, target: run.target });
    showNotice("Your translation was sent to the operator of this service.");
  } catch (error) {
    showError(error);
  }
  button.disabled = false;
}

export function setUserTranslation(translation) {
  onTranslationTyped.cancel();
  if (byId("user-translation").value !== translation) byId("user-translation").value = translation;
  change({ translation });
}

/** Return the request that inspects the user's translation, or else the run's, which begins with `prefix`. */
const inspectionRequest = (panel, sentence, { translation, prefix }) => ({ ...runFields(panel.run), text: sentence.source, alternatives: 8, ...(translation ? { translation } : { search: searchConfig(panel.run), prefix }) });

/** Inspect the selected sentence of a panel; only the latest request of a panel counts. */
export async function inspect(panel, signal = page.translation.signal) {
  const sentence = panel.sentences[page.state.sentence];
  if (!sentence?.complete) return;
  if (page.state.translation) userTranslations.set(sentence.source, page.state.translation);
  else if (userTranslations.has(sentence.source)) {
    setUserTranslation(userTranslations.get(sentence.source));
    for (const other of page.panels) if (other !== panel) inspect(other, signal);
  }
  const translation = page.state.translation.trim() || undefined;
  const prefix = page.state.forced[`${panel.index}.${page.state.sentence}`];
  const fields = inspectionRequest(panel, sentence, { translation, prefix });
  const request = JSON.stringify(fields);
  if (panel.request === request && (panel.isLoading || panel.inspection)) {
    updateViews();
    return;
  }
  Object.assign(panel, { request, isLoading: true, error: null });
  try {
    const response = inspectionCache.get(request) ?? (await post("/v1/lens", fields, signal));
    inspectionCache.set(request, response);
    if (inspectionCache.size > MAX_CACHED_INSPECTIONS) inspectionCache.delete(inspectionCache.keys().next().value);
    if (panel.request !== request || signal.aborted) return;
    Object.assign(panel, { inspection: response.inspection, forced: response.forced_tokens, isLoading: false });
    if (prefix && !translation) showForcedTranslation(sentence, response);
  } catch (error) {
    if (panel.request !== request) return;
    Object.assign(panel, { request: null, isLoading: false });
    if (signal.aborted) return;
    Object.assign(panel, { inspection: null, error: error.message });
    if (error.status === 403) showError(error);
  }
  updateViews();
  updateTranslations();
}

/** Replace the translation of a sentence by the one with forced tokens. */
function showForcedTranslation(sentence, { inspection: { target, steps, score, finished }, forced_tokens: count }) {
  const prefix = joinTokens(steps.slice(0, count).map((step) => step.token));
  const { text, score: unforcedScore, numTokens, tokens, warnings } = sentence;
  sentence.unforced ??= { text, score: unforcedScore, numTokens, tokens, warnings };
  const generated = steps.slice(0, steps.length - Number(finished)).map((step) => step.token); // without EOS
  Object.assign(sentence, { text: target.text, score, numTokens: steps.length, tokens: generated, warnings: [], isForced: true, forcedPrefix: target.text.startsWith(prefix) ? prefix : "" });
}

/** Return the steps of the run's translation of the selected sentence, not of the user's. */
export async function stepsOfTranslation(panel) {
  if (page.state.translation) {
    userTranslations.delete(panel.sentences[page.state.sentence].source);
    setUserTranslation("");
  }
  if (!panel.inspection || panel.isLoading || !panel.inspection.from_search) await inspect(panel);
  while (panel.isLoading) await new Promise((resume) => { setTimeout(resume, 50); }); // another call waits for it
  if (!panel.inspection) throw new Error(panel.error ?? "The sentence cannot be inspected.");
  return panel.inspection.steps;
}

/** Apply the forced tokens of a link to a sentence that is not selected. */
export async function applyForcedTokens(panel, key, signal) {
  const [panelIndex, index] = key.split(".").map(Number);
  const sentence = panel.sentences[index];
  if (panelIndex !== panel.index || index === page.state.sentence || !sentence || !page.state.forced[key]) return;
  try {
    showForcedTranslation(sentence, await post("/v1/lens", inspectionRequest(panel, sentence, { prefix: page.state.forced[key] }), signal));
    updateTranslations();
  } catch (error) {
    if (!signal.aborted) showError(error);
  }
}

// ---- forced tokens, and their history

const undone = []; // earlier and later values of state.forced
const redone = [];

/** Force the translation of the selected sentence to begin with tokens, or (null) restore the run's translation. */
export function force(panel, tokenIds) {
  const key = `${panel.index}.${page.state.sentence}`;
  const { [key]: _, ...others } = page.state.forced;
  undone.push(page.state.forced);
  redone.length = 0;
  setForced(tokenIds ? { ...others, [key]: tokenIds } : others);
}

/** Go one step back or forward in the history of forced tokens. */
export function stepForced(isUndo) {
  const [from, to] = isUndo ? [undone, redone] : [redone, undone];
  if (!from.length) return;
  to.push(page.state.forced);
  setForced(from.pop());
}

/** Forget the history of forced tokens: the text, the run or the search is another one. */
export function forgetForced() {
  undone.length = redone.length = 0;
  showForcedHistory();
}

function showForcedHistory() {
  for (const [id, steps] of [["undo", undone], ["redo", redone]]) {
    byId(id).hidden = !undone.length && !redone.length;
    byId(id).disabled = !steps.length;
  }
}

/** Replace the forced tokens of all sentences, and translate those again that have other ones. */
function setForced(forced) {
  const previous = page.state.forced;
  const keys = new Set([...Object.keys(previous), ...Object.keys(forced)].filter((key) => String(previous[key]) !== String(forced[key])));
  change({ forced, step: 0, word: "" });
  for (const key of keys) {
    const [panelIndex, index] = key.split(".").map(Number);
    const panel = page.panels[panelIndex];
    const sentence = panel?.sentences[index];
    if (!sentence) continue;
    if (!forced[key] && sentence.unforced) Object.assign(sentence, sentence.unforced, { unforced: undefined, isForced: false, forcedPrefix: "" });
    userTranslations.delete(sentence.source);
    if (index !== page.state.sentence) applyForcedTokens(panel, key, page.translation.signal);
  }
  setUserTranslation("");
  showForcedHistory();
  for (const panel of page.panels) inspect(panel);
  updateTranslations();
}

export function selectSentence(sentence) {
  if (sentence !== page.state.sentence) setUserTranslation("");
  change({ sentence, step: 0, word: "" });
  for (const panel of page.panels) inspect(panel);
  updateTranslations();
  scrollToSelected();
}
