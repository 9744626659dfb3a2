// The details of a sentence of the test set: its errors, an editor for its source, and the way to the inspector.

import { debounce, formatNumber, html } from "./dom.js";
import { runFields, searchConfig } from "./session.js";
import { formatState } from "./state.js";
import { markedDifference } from "./word_difference.js";

const TYPING_DELAY = 350; // milliseconds

/** Return the details of a row: edit the source and see what changes, in each run. */
export function sentenceDetail(row, explanations, context) {
  const { state, panels, post } = context;
  let request = new AbortController();
  const results = html("div", { class: "detail-results" });
  const message = html("p", { class: "muted", role: "status" });
  const source = html("textarea", { rows: 2, dir: "auto", spellcheck: "false", "aria-label": "Source sentence: edit it to compare", input: () => onInput() });
  source.value = row.source;
  const reset = html("button", { type: "button", disabled: true, click: () => { source.value = row.source; translate(); source.focus(); } }, "Original source");
  const onInput = debounce(TYPING_DELAY, translate);

  async function translate() {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    const text = source.value.trim();
    reset.disabled = source.value === row.source;
    if (source.value === row.source || !text) return showResults(row.results.map(({ translation, score }) => ({ translation, score })));
    message.textContent = "translating …";
    try {
      const answers = await Promise.all(panels.map(({ run }) => post("/v1/translate", { ...runFields(run), search: searchConfig(run), text, split: false }, signal)));
      showResults(answers.map(({ translations: [{ text: translation, sentences: [sentence] }] }) => ({ translation, score: sentence?.hypotheses[0].score ?? null })));
    } catch (error) {
      if (!signal.aborted) message.textContent = error.message;
    }
    return undefined;
  }

  function showResults(current) {
    const isEdited = source.value !== row.source;
    message.textContent = isEdited ? "Marked: words that differ from the translation of the original source." : "";
    results.replaceChildren(...current.map(({ translation, score }, n) => {
      const original = row.results[n];
      const numbers = [`log p ${formatNumber(score)}`];
      if (!isEdited && original.reference_score !== null) numbers.push(`reference log p ${formatNumber(original.reference_score)}`);
      if (!isEdited) numbers.push(`chrF ${formatNumber(original.chrf, 1)}`, `BLEU ${formatNumber(original.bleu, 1)}`);
      return html("section", { "data-panel": n },
        html("p", { class: "run-name" }, panels[n].run.name),
        html("p", { class: "detail-text" }, markedDifference(translation, isEdited ? original.translation : row.reference)),
        isEdited ? html("p", { class: "muted", dir: "auto" }, `before: ${original.translation}`) : null,
        html("p", { class: "muted figures" }, numbers.join(" · ")),
        isEdited ? null : html("ul", { class: "detail-errors" }, original.errors.map(({ kind, detail }) => html("li", {}, html("strong", {}, kind), detail ? ` (${detail})` : "", `: ${explanations[kind]}.`))));
    }));
  }

  /** Show the sentence in a view of the page. */
  const inspect = (view) => () => {
    location.hash = formatState({ ...state, text: source.value, view, sentence: 0, translation: "", forced: {}, step: 0, word: "" });
    document.getElementById("views")?.focus();
  };
  showResults(row.results.map(({ translation, score }) => ({ translation, score })));
  return html("div", { class: "error-detail" },
    html("div", {}, html("p", { class: "muted" }, "Source: edit it to see what changes"), source,
      html("div", { class: "toolbar" }, html("button", { type: "button", click: inspect("attention") }, "Inspect"), html("button", { type: "button", click: inspect("gradients") }, "Gradients"), reset)),
    html("div", {}, results, html("p", { class: "muted" }, "Reference"), html("p", { class: "detail-text" }, markedDifference(row.reference, row.results[0].translation)), message));
}
