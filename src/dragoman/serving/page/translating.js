// Translation of the text by every run that is shown.

import { streamEvents } from "./api.js";
import { byId, debounce } from "./dom.js";
import { showSentenceBar, updateViews } from "./frame.js";
import { applyForcedTokens, inspect, setUserTranslation } from "./inspection.js";
import { showError, showNotice } from "./notices.js";
import { TYPING_DELAY, change, page, runFields, searchConfig } from "./session.js";
import { scrollToSelected, updateTranslations } from "./translation.js";

const MAX_RETRIES = 3;

export const onSourceTyped = debounce(TYPING_DELAY, () => {
  setUserTranslation("");
  change({ text: byId("source").value, forced: {}, step: 0, word: "" });
  translate();
});

/** Translate the text with every run that is shown; cancels the previous translation. */
export async function translate(retries = 0) {
  onSourceTyped.cancel();
  page.translation.abort();
  page.translation = new AbortController();
  const { signal } = page.translation;
  byId("count").textContent = page.state.text.length > 500 ? `${page.state.text.length.toLocaleString("en")} characters` : "";
  showNotice("");
  byId("examples").hidden = Boolean(page.state.text) || !byId("examples").children.length;
  for (const panel of page.panels) Object.assign(panel, { sentences: [], error: null });
  if (!page.state.text.trim()) {
    for (const panel of page.panels) panel.inspection = null;
    updateTranslations();
    updateViews();
    return;
  }
  byId("views").classList.add("stale");
  try {
    await Promise.all(page.panels.map((panel) => translatePanel(panel, signal)));
    byId("announcement").textContent = page.panels.map((panel) => `${page.panels.length > 1 ? `${panel.run.name}: ` : ""}${panel.sentences.map((sentence) => sentence.text).join(" ")}`).join(" ");
  } catch (error) {
    if (signal.aborted) return;
    if (error.retryAfter && retries < MAX_RETRIES) setTimeout(() => signal.aborted || translate(retries + 1), 1000 * error.retryAfter);
    showError(error);
  } finally {
    if (!signal.aborted) {
      byId("busy").textContent = "";
      updateTranslations();
      scrollToSelected();
    }
  }
}

async function translatePanel(panel, signal) {
  const paint = oncePerFrame(() => {
    updateTranslations();
    showSentenceBar();
  }, signal);
  const sentenceAt = (index) => (panel.sentences[index] ??= { source: "", text: "", tentativeText: "", complete: false });
  byId("busy").textContent = "translating …";
  paint();
  await streamEvents("/v1/stream", { ...runFields(panel.run), text: page.state.text, search: searchConfig(panel.run) }, signal, (name, data) => {
    if (name === "tokens") {
      const sentence = sentenceAt(data.sentence);
      if (!sentence.complete) Object.assign(sentence, { text: sentence.text + data.text, tentativeText: data.tentative_text });
    } else if (name === "sentence") {
      const best = data.hypotheses[0];
      Object.assign(sentenceAt(data.sentence), { source: data.source, text: best.text, tentativeText: "", complete: true, score: best.score, numTokens: best.tokens.length, truncatedSource: best.truncated_source, finished: best.finished });
      if (data.sentence === page.state.sentence) inspect(panel, signal);
    } else if (name === "done") {
      if (page.state.sentence >= panel.sentences.length) change({ sentence: 0 });
      inspect(panel, signal);
      for (const key of Object.keys(page.state.forced)) applyForcedTokens(panel, key, signal);
    }
    paint();
  });
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
