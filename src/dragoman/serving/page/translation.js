// The translations: a row for each sentence of each run.

import { byId, formatNumber, formatPercent, html } from "./dom.js";
import { context } from "./session.js";
import { direction } from "./tokens.js";

/** Show the translations of all panels. */
export const updateTranslations = () => showTranslations(byId("target"), context());

/** Update the rows in place: long texts are not rebuilt for every token. */
function showTranslations(container, { state, panels, selectSentence }) {
  while (container.children.length > panels.length) container.lastChild.remove();
  panels.forEach((panel, n) => {
    if (!container.children[n]) container.append(html("section", { class: "result" }, html("div", { class: "run-name" }), html("ol"), html("p", { class: "muted figures" })));
    showPanel(container.children[n], panel, panels.length > 1, state.sentence, selectSentence);
  });
}

function showPanel(section, { run, index, sentences }, showName, selected, selectSentence) {
  const [name, list, summary] = section.children;
  const hasMany = sentences.length > 1;
  name.hidden = !showName;
  name.textContent = run.name;
  section.dataset.panel = index;
  list.lang = run.target;
  list.className = hasMany ? "many" : "single";
  while (list.children.length > sentences.length) list.lastChild.remove();
  sentences.forEach((sentence, n) => {
    const button = (list.children[n] ?? list.appendChild(newRow(n, selectSentence))).firstChild;
    const [source, forcedPrefix, text, tentative] = button.children;
    setText(source, hasMany ? sentence.source : "");
    setText(forcedPrefix, sentence.forcedPrefix);
    setText(text, sentence.text.slice(sentence.forcedPrefix?.length ?? 0));
    setText(tentative, sentence.complete && !sentence.text.trim() ? "(only spaces)" : sentence.tentativeText);
    button.dir = direction(run.target);
    button.setAttribute("aria-current", String(n === selected && hasMany));
  });
  setText(summary, summarize(sentences[selected], hasMany));
}

function setText(element, text = "") {
  if (element.textContent !== text) element.textContent = text;
}

const newRow = (n, selectSentence) => html("li", {}, html("button", { type: "button", click: () => selectSentence(n) },
  html("span", { class: "source muted", dir: "auto" }), html("span", { class: "forced-prefix" }), html("span", { class: "text" }), html("span", { class: "tentative" })));

function summarize(sentence, hasMany) {
  if (!sentence?.complete || sentence.score === null) return "";
  const parts = [`log p ${formatNumber(sentence.score)}`, `${formatPercent(Math.exp(sentence.score / sentence.numTokens))} per token`];
  if (sentence.isForced) parts.push("the beginning is forced");
  if (sentence.finished === false) parts.push("truncated at the length limit");
  if (sentence.truncatedSource) parts.push("only the beginning of the source was read");
  return (hasMany ? "selected sentence: " : "") + parts.join(" · ");
}

/** Scroll the lists of sentences, but not the page, to the selected sentence. */
export function scrollToSelected() {
  for (const row of byId("target").querySelectorAll("[aria-current=true]")) {
    const list = row.closest("ol");
    const [box, frame] = [row.getBoundingClientRect(), list.getBoundingClientRect()];
    if (box.top < frame.top || box.bottom > frame.bottom) list.scrollTop += box.top - frame.top - 8;
  }
}
