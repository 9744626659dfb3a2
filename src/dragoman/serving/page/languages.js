// The language menus: they select a run that translates between the languages.

import { post } from "./api.js";
import { byId, html } from "./dom.js";
import { change, findRun, languagesOf, page } from "./session.js";

export const DETECT = "auto"; // in place of a source language

/** Return the pairs of languages that a run translates, as its source languages and the targets of each. */
const codesOf = (run) => (run.languages.length ? run.languages.map(({ code }) => code) : null);
const sourcesOf = (run) => codesOf(run) ?? [run.source];
const targetsOf = (run, source) => codesOf(run)?.filter((code) => code !== source) ?? (run.source === source ? [run.target] : []);
const translates = (run, source, target) => sourcesOf(run).includes(source) && targetsOf(run, source).includes(target);

/** Whether the language of a text can be detected: by the service, among the languages of bilingual runs. */
const canDetect = () => new Set(page.runs.filter((run) => !run.languages.length).map((run) => run.source)).size > 1;

/** Return a run for two languages: the selected one if it fits, else the first; any target if none translates into `target`. */
function runFor(source, target) {
  const runs = [findRun(page.state.run), ...page.runs].filter(Boolean);
  return runs.find((run) => translates(run, source, target)) ?? runs.find((run) => sourcesOf(run).includes(source));
}

const nameOf = (code) => page.languageNames.get(code) ?? page.runs.flatMap((run) => run.languages).find((language) => language.code === code)?.name ?? code;
const label = (code) => (nameOf(code) === code || code.length === 2 ? nameOf(code) : `${nameOf(code)} (${code})`);
const unique = (list) => [...new Set(list)];

/** Show the languages of the run, and the ones that can be selected instead. */
export function showLanguages(run) {
  const { source, target } = languagesOf(run);
  const isDetected = page.state.from === DETECT && canDetect();
  const detect = html("option", { value: DETECT }, isDetected && page.detected ? `${nameOf(source)} (detected)` : "Detect language");
  fill(byId("from"), [...(canDetect() ? [detect] : []), ...unique(page.runs.flatMap(sourcesOf)).map(option)], isDetected ? DETECT : source);
  fill(byId("to"), unique(page.runs.flatMap((other) => targetsOf(other, source))).map(option), target);
  byId("swap").disabled = !page.runs.some((other) => translates(other, target, source));
  byId("source-name").textContent = nameOf(source);
  byId("target-name").textContent = nameOf(target);
}

const option = (code) => html("option", { value: code }, label(code));

function fill(select, options, value) {
  const isEqual = options.length === select.options.length && options.every((one, n) => one.value === select.options[n].value && one.textContent === select.options[n].textContent);
  if (!isEqual) select.replaceChildren(...options);
  select.value = value;
}

/** Select languages, and a run for them; `text` replaces the source text. */
function choose(source, target, text = page.state.text) {
  if (source === DETECT) change({ from: DETECT });
  else {
    const run = runFor(source, target);
    const isMultilingual = run.languages.length > 0;
    const to = targetsOf(run, source).includes(target) ? target : targetsOf(run, source)[0];
    change({ run: run.name, from: isMultilingual ? source : "", to: isMultilingual ? to : "" });
  }
  page.detected = null;
  change({ text, translation: "", forced: {}, sentence: text === page.state.text ? page.state.sentence : 0, step: 0, word: "" });
  page.actions.applyState();
}

/** Translate in the other direction, beginning with the translation that is shown. */
function swap() {
  const { source, target } = languagesOf(findRun(page.state.run));
  const translation = page.panels[0].sentences.map((sentence) => sentence.text + (sentence.spaceAfter ?? "")).join("");
  choose(target, source, translation.trim() ? translation : page.state.text);
}

/** Detect the language of the text, and select a run for it. */
export async function detectLanguage(signal) {
  if (page.state.from !== DETECT || !canDetect()) return;
  const found = await post("/detect", { q: page.state.text }, signal);
  const { target } = languagesOf(findRun(page.state.run));
  const language = found.map((one) => one.language).find((code) => page.runs.some((run) => !run.languages.length && run.source === code));
  if (!language) return;
  page.detected = language;
  const run = runFor(language, target);
  if (run.name !== page.state.run) {
    change({ run: run.name, forced: {} });
    page.actions.showRuns();
  } else showLanguages(run);
}

export function setUpLanguages() {
  byId("from").addEventListener("change", () => choose(byId("from").value, byId("to").value));
  byId("to").addEventListener("change", () => {
    const { source } = languagesOf(findRun(page.state.run));
    choose(source, byId("to").value);
  });
  byId("swap").addEventListener("click", swap);
}
