// Translation of the text by every run that is shown.

import { post, streamEvents } from "./api.js";
import { byId, debounce } from "./dom.js";
import { showSentenceBar, updateViews } from "./frame.js";
import { applyForcedTokens, forgetForced, inspect, setUserTranslation } from "./inspection.js";
import { detectLanguage } from "./languages.js";
import { showNotice } from "./notices.js";
import { cancelRetry, showAndRetry } from "./retry.js";
import { TYPING_DELAY, change, page, runFields, searchConfig } from "./session.js";
import { excessCharacters, showCount } from "./source_box.js";
import { remember } from "./translation_history.js";
import { scrollToSelected, updateTranslations } from "./translation.js";
import { closeWordMenu } from "./word_menu.js";

const REFUSED = new Set([404, 405, 429, 503]); // status of a stream in whose place the translation is requested at once

export const onSourceTyped = debounce(TYPING_DELAY, () => {
  const isShown = byId("source").value === page.state.text && page.panels.every((panel) => panel.sentences.length && panel.sentences.every((sentence) => sentence.complete));
  if (isShown) { // a change was undone
    updateTranslations();
    updateViews();
    return;
  }
  setUserTranslation("");
  change({ text: byId("source").value, forced: {}, step: 0, word: "" });
  forgetForced();
  translate();
});

/** Translate the text with every run that is shown; cancels the previous translation. */
export async function translate(attempt = 0) {
  onSourceTyped.cancel();
  cancelRetry();
  closeWordMenu();
  page.translation.abort();
  page.translation = new AbortController();
  const { signal } = page.translation;
  showNotice("");
  showCount();
  byId("examples").hidden = Boolean(page.state.text) || !byId("examples").children.length;
  const excess = excessCharacters(page.state.text);
  if (!page.state.text.trim() || excess > 0) {
    clearResults();
    if (excess > 0) showNotice(`The text has ${excess.toLocaleString("en")} characters more than the ${page.settings.maxCharacters.toLocaleString("en")} that are translated at a time: shorten it.`);
    return;
  }
  byId("views").classList.add("stale");
  byId("busy").textContent = "translating …";
  try {
    for (const panel of page.panels) Object.assign(panel, { sentences: [], error: null });
    await detectLanguage(signal);
    await Promise.all(page.panels.map((panel) => translatePanel(panel, signal)));
    byId("announcement").textContent = page.panels.map((panel) => `${page.panels.length > 1 ? `${panel.run.name}: ` : ""}${panel.sentences.map((sentence) => sentence.text).join(" ")}`).join(" ");
    remember();
  } catch (error) {
    if (signal.aborted) return;
    page.translation.abort(); // of the other run
    clearResults();
    showAndRetry(error, attempt, (next = attempt) => page.actions.reconnect(error, () => translate(next)));
  } finally {
    if (page.translation.signal === signal) {
      byId("busy").textContent = "";
      updateTranslations();
      scrollToSelected();
    }
  }
}

/** Remove translations and inspections: what is shown always belongs to the text. */
function clearResults() {
  byId("busy").textContent = "";
  for (const panel of page.panels) Object.assign(panel, { sentences: [], inspection: null, request: null, isLoading: false, error: null });
  updateTranslations();
  updateViews();
}

async function translatePanel(panel, signal) {
  const paint = oncePerFrame(() => {
    updateTranslations();
    showSentenceBar();
  }, signal);
  paint();
  const fields = { ...runFields(panel.run), text: page.state.text, search: searchConfig(panel.run), warnings: true };
  try {
    await streamEvents("/v1/stream", fields, signal, (name, data) => {
      if (name === "tokens") {
        const sentence = sentenceAt(panel, data.sentence);
        if (!sentence.complete) Object.assign(sentence, { text: sentence.text + data.text, tentativeText: data.tentative_text });
      } else if (name === "sentence") complete(panel, data.sentence, data, signal);
      paint();
    });
  } catch (error) {
    if (signal.aborted || !REFUSED.has(error.status)) throw error;
    panel.sentences = [];
    const { translations: [{ sentences }] } = await post("/v1/translate", fields, signal);
    sentences.forEach((data, n) => complete(panel, n, data, signal));
  }
  if (page.state.sentence >= panel.sentences.length) change({ sentence: 0 });
  inspect(panel, signal);
  for (const key of Object.keys(page.state.forced)) applyForcedTokens(panel, key, signal);
  paint();
}

const sentenceAt = (panel, index) => (panel.sentences[index] ??= { source: "", text: "", tentativeText: "", complete: false });

/** Store the complete translation of a sentence, and inspect it if it is selected. */
function complete(panel, index, { source, hypotheses: [best], space_after: spaceAfter, warnings }, signal) {
  Object.assign(sentenceAt(panel, index), {
    source, spaceAfter, warnings: warnings ?? [], text: best.text, tokens: best.tokens, tentativeText: "", complete: true,
    score: best.score, numTokens: best.tokens.length,
  });
  if (index === page.state.sentence) inspect(panel, signal);
}

function oncePerFrame(work, signal) {
  let isPlanned = false;
  return () => {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(() => {
      isPlanned = false;
      if (!signal.aborted) work();
    });
  };
}
