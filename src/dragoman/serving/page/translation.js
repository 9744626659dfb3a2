// The translations as text that can be selected: sentences of words, with warnings below.

import { byId, formatNumber, formatPercent, html } from "./dom.js";
import { page } from "./session.js";
import { codeUnits, markSource } from "./source_box.js";
import { showSpeech } from "./speech.js";
import { direction, languageTag, wordUnits } from "./tokens.js";
import { openWordMenu } from "./word_menu.js";

const MAX_WARNINGS = 6; // that are listed

/** Return the translation of a panel as text, with the white space between sentences. */
export const translationText = (panel) => panel.sentences.map((sentence, n) => sentence.text + gapAfter(panel, n)).join("");

const gapAfter = ({ sentences }, n) => sentences[n].spaceAfter ?? (n < sentences.length - 1 ? " " : "");

/** Show the translations of all panels; what has not changed stays, so that a selection of text is kept. */
export function updateTranslations() {
  const container = byId("target");
  while (container.children.length > page.panels.length) container.lastChild.remove();
  page.panels.forEach((panel, n) => showPanel(container.children[n] ?? container.appendChild(newSection()), panel));
  byId("copy-translation").hidden = !page.panels.some((panel) => translationText(panel).trim());
  showSpeech();
  markSource();
}

function newSection() {
  const section = html("section", { class: "result" }, html("h3", { class: "run-name" }), html("div", { class: "translation" }), html("ul", { class: "warnings" }), html("p", { class: "muted figures" }));
  const text = section.children[1];
  const panelOf = () => page.panels[section.dataset.panel];
  const sentenceOf = (target) => target.closest?.(".sentence");
  text.addEventListener("click", ({ target }) => {
    const isSelecting = !getSelection().isCollapsed && text.contains(getSelection().anchorNode);
    if (!isSelecting && sentenceOf(target)) activate(panelOf(), sentenceOf(target), target.closest(".target-word"));
  });
  text.addEventListener("keydown", (event) => onKey(event, text, panelOf));
  for (const name of ["pointerover", "focusin"]) text.addEventListener(name, ({ target }) => sentenceOf(target) && markSource(Number(sentenceOf(target).dataset.sentence)));
  for (const name of ["pointerleave", "focusout"]) text.addEventListener(name, () => markSource(null));
  return section;
}

/** Select a sentence; a word of the selected sentence opens the menu of other words. */
function activate(panel, element, word) {
  const n = Number(element.dataset.sentence);
  const sentence = panel.sentences[n];
  if (!sentence?.complete) return;
  if (n !== page.state.sentence) page.actions.selectSentence(n);
  else if (word) openWordMenu(panel, n, Number(word.dataset.unit), word);
}

/** Arrow keys move between words, Enter does what a click does. */
function onKey(event, text, panelOf) {
  if (!event.target.matches(".target-word")) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    activate(panelOf(), event.target.closest(".sentence"), event.target);
    return;
  }
  const words = [...text.querySelectorAll(".target-word")];
  const index = words.indexOf(event.target);
  const isRightToLeft = getComputedStyle(text).direction === "rtl";
  const sentences = [...text.querySelectorAll(".sentence")];
  const firstWord = (by) => words.indexOf(sentences[sentences.indexOf(event.target.closest(".sentence")) + by]?.querySelector(".target-word"));
  const targets = { ArrowRight: index + (isRightToLeft ? -1 : 1), ArrowLeft: index + (isRightToLeft ? 1 : -1), ArrowDown: firstWord(1), ArrowUp: firstWord(-1), Home: 0, End: words.length - 1 };
  const next = words[targets[event.key]];
  if (!(event.key in targets)) return;
  event.preventDefault();
  if (next) focusWord(text, next);
}

function focusWord(text, word) {
  for (const other of text.querySelectorAll(".target-word[tabindex='0']")) other.tabIndex = -1;
  word.tabIndex = 0;
  word.focus();
}

function showPanel(section, panel) {
  const { run, index, sentences } = panel;
  const [name, text, warnings, summary] = section.children;
  name.hidden = page.panels.length < 2;
  setText(name, run.name);
  section.dataset.panel = index;
  Object.assign(text, { lang: languageTag(run.target), dir: direction(run.target) });
  text.classList.toggle("several", sentences.length > 1);
  while (text.children.length > 2 * sentences.length) text.lastChild.remove();
  sentences.forEach((sentence, n) => {
    const element = text.children[2 * n] ?? text.appendChild(html("span", { class: "sentence", "data-sentence": n }));
    const gap = text.children[2 * n + 1] ?? text.appendChild(html("span", { class: "gap" }));
    setText(gap, gapAfter(panel, n));
    showSentence(element, sentence);
    element.setAttribute("aria-current", String(n === page.state.sentence && sentences.length > 1));
  });
  if (!text.querySelector(".target-word[tabindex='0']")) text.querySelector(".target-word")?.setAttribute("tabindex", "0");
  showWarnings(warnings, panel);
  setText(summary, summarize(sentences[page.state.sentence], sentences.length > 1));
}

/** Show a sentence: plain text while it is generated, then words that can be replaced. */
function showSentence(element, sentence) {
  const { text, tentativeText, complete, forcedPrefix = "", tokens = [], warnings = [] } = sentence;
  const content = JSON.stringify([text, tentativeText, complete, forcedPrefix, warnings]);
  if (element.shownContent === content) return;
  element.shownContent = content; // a property: it may be long
  const focused = element.contains(document.activeElement) ? Number(document.activeElement.dataset.unit) : null;
  if (!complete) element.replaceChildren(text, html("span", { class: "tentative" }, tentativeText));
  else if (!text.trim()) element.replaceChildren(html("span", { class: "tentative" }, "(only spaces)"));
  else {
    const doubtful = warnings.flatMap((warning) => codeUnits(text, warning.target_spans));
    const nodes = [];
    let cursor = 0;
    wordUnits(text, tokens).forEach(({ begin, end }, unit) => {
      const classes = ["target-word", end <= forcedPrefix.length && "forced", doubtful.some((span) => span[0] < end && begin < span[1]) && "doubtful"].filter(Boolean);
      nodes.push(text.slice(cursor, begin), html("span", { class: classes.join(" "), role: "button", tabindex: "-1", "data-unit": unit }, text.slice(begin, end)));
      cursor = end;
    });
    element.replaceChildren(...nodes, text.slice(cursor));
    if (focused !== null) focusWord(element.parentElement, element.querySelectorAll(".target-word")[focused] ?? element.querySelector(".target-word"));
  }
}

/** List what is suspicious about the sentences. */
function showWarnings(list, { sentences }) {
  const all = sentences.flatMap((sentence, n) => (sentence.warnings ?? []).map((warning) => ({ n, ...warning })));
  const content = JSON.stringify([all, sentences.length > 1]);
  if (list.shownContent === content) return;
  list.shownContent = content;
  const point = (n) => () => markSource(n);
  list.replaceChildren(...all.slice(0, MAX_WARNINGS).map(({ n, kind, message }) => html("li", { "data-kind": kind, pointerenter: point(n), pointerleave: point(null) }, sentences.length > 1 ? html("button", { type: "button", click: () => page.actions.selectSentence(n), focus: point(n), blur: point(null) }, `Sentence ${n + 1}`) : null, ` ${message}`)));
  if (all.length > MAX_WARNINGS) list.append(html("li", {}, `and ${all.length - MAX_WARNINGS} more warnings`));
}

function setText(element, text = "") {
  if (element.textContent !== text) element.textContent = text;
}

function summarize(sentence, hasMany) {
  if (!sentence?.complete || sentence.score === null) return "";
  const parts = [`log p ${formatNumber(sentence.score)}`, `${formatPercent(Math.exp(sentence.score / sentence.numTokens))} per token`];
  if (sentence.isForced) parts.push("the beginning is forced");
  return (hasMany ? "selected sentence: " : "") + parts.join(" · ");
}

/** Scroll the translations, but not the page, to the selected sentence. */
export function scrollToSelected() {
  for (const row of byId("target").querySelectorAll(".sentence[aria-current=true]")) {
    const frame = row.closest(".translation");
    const [box, outer] = [row.getBoundingClientRect(), frame.getBoundingClientRect()];
    if (box.top < outer.top || box.bottom > outer.bottom) frame.scrollTop += box.top - outer.top - 8;
  }
}
