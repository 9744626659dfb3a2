// Inspections of sentences: requests for the panels, forced tokens and the user's translation.

import { post } from "./api.js";
import { byId, debounce } from "./dom.js";
import { updateViews } from "./frame.js";
import { showError } from "./notices.js";
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

export function setUserTranslation(translation) {
  onTranslationTyped.cancel();
  if (byId("user-translation").value !== translation) byId("user-translation").value = translation;
  change({ translation });
}

const inspectionRequest = (panel, sentence, fields) => ({ ...runFields(panel.run), text: sentence.source, search: searchConfig(panel.run), alternatives: 8, ...fields });

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
  const prefix = translation ? undefined : page.state.forced[`${panel.index}.${page.state.sentence}`];
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
    if (prefix) showForcedTranslation(sentence, response);
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
function showForcedTranslation(sentence, { inspection: { target, steps, score }, forced_tokens: count }) {
  const prefix = joinTokens(steps.slice(0, count).map((step) => step.token));
  sentence.unforced ??= { text: sentence.text, score: sentence.score, numTokens: sentence.numTokens };
  Object.assign(sentence, { text: target.text, score, numTokens: steps.length, isForced: true, forcedPrefix: target.text.startsWith(prefix) ? prefix : "" });
}

/** Apply the forced tokens of a link to a sentence that is not selected. */
export async function applyForcedTokens(panel, key, signal) {
  const [panelIndex, index] = key.split(".").map(Number);
  const sentence = panel.sentences[index];
  if (panelIndex !== panel.index || index === page.state.sentence || !sentence) return;
  try {
    showForcedTranslation(sentence, await post("/v1/lens", inspectionRequest(panel, sentence, { prefix: page.state.forced[key] }), signal));
    updateTranslations();
  } catch (error) {
    if (!signal.aborted) showError(error);
  }
}

/** Force the translation of the selected sentence to begin with tokens, or (null) restore the run's translation. */
export function force(panel, tokenIds) {
  const key = `${panel.index}.${page.state.sentence}`;
  const forced = { ...page.state.forced };
  const sentence = panel.sentences[page.state.sentence];
  if (tokenIds) forced[key] = tokenIds;
  else {
    delete forced[key];
    if (sentence.unforced) Object.assign(sentence, sentence.unforced, { unforced: undefined, isForced: false, forcedPrefix: "" });
  }
  userTranslations.delete(sentence.source);
  setUserTranslation("");
  change({ forced, step: 0, word: "" });
  inspect(panel);
}

export function selectSentence(sentence) {
  if (sentence !== page.state.sentence) setUserTranslation("");
  change({ sentence, step: 0, word: "" });
  for (const panel of page.panels) inspect(panel);
  updateTranslations();
  scrollToSelected();
}
