// The page: its state, requests to the service, and updates of the views.

import { ServiceError, get, post, removeApiKey, setApiKey, streamEvents } from "./api.js";
import { byId, debounce, emptyMessage, formatNumber, formatPercent, html, rovingFocus } from "./dom.js";
import { formatState, parseState } from "./state.js";
import { setUpTheme } from "./theme.js";
import { direction, joinTokens, languageTag } from "./tokens.js";
import { showTranslations } from "./translation.js";
import { VIEWS } from "./views.js";

const BEAM_SIZES = [1, 2, 3, 4, 5, 8, 12];
const TYPING_DELAY = 350; // milliseconds after the last key
const MAX_CACHED_INSPECTIONS = 60;
const MAX_RETRIES = 3;

let state = parseState(location.hash);
let runs = []; // that are served
let languageNames = new Map();
// one panel for each run that is shown: {run, index, sentences, inspection, forced, error, isLoading, request}
let panels = [];
let translationRequest = new AbortController();
let shownContent = ""; // describes what the views show
const inspectionCache = new Map(); // request → response
const userTranslations = new Map(); // source sentence → the user's translation

// ---- state

const updateLink = debounce(200, () => history.replaceState(null, "", `#${formatState(state)}`));

function change(patch) {
  Object.assign(state, patch);
  updateLink();
}

const findRun = (name) => runs.find((run) => run.name === name);
const context = () => ({ state, panels, change, selectSentence, force, get, post });
const updateTranslations = () => showTranslations(byId("target"), context());

/** Show the runs and the text of the state. */
function applyState() {
  const selected = [findRun(state.run) ?? runs[0], findRun(state.compare)].filter(Boolean);
  const missing = [state.run, state.compare].filter((name) => name && !findRun(name));
  state.run = selected[0]?.name ?? "";
  state.compare = selected[1]?.name ?? "";
  if (!BEAM_SIZES.includes(Number(state.beam))) state.beam = "";
  shownContent = "";
  panels = selected.map((run, index) => ({ run: { ...run, ...languagesOf(run) }, index, sentences: [], inspection: null, forced: 0, error: null, isLoading: false, request: null }));
  const { source, target } = languagesOf(selected[0]);
  showLanguages(selected[0]);
  Object.assign(byId("source"), { lang: languageTag(source), dir: direction(source) });
  byId("source-name").textContent = languageNames.get(source) ?? source;
  byId("target-name").textContent = languageNames.get(target) ?? target;
  byId("user-translation").lang = languageTag(target);
  const values = { run: state.run, compare: state.compare, beam: state.beam, source: state.text, "user-translation": state.translation };
  for (const [id, value] of Object.entries(values)) if (byId(id).value !== value) byId(id).value = value;
  showTabs();
  showExamples();
  translate();
  if (missing.length) showNotice(`The link refers to ${missing.join(" and ")}, which is not served here; this is ${state.run}.`);
}

/** Return source and target language of a run: of a multilingual one those that are selected, or its default. */
function languagesOf(run) {
  const choose = (code, byDefault) => run.languages.find((language) => language.code === code)?.code ?? byDefault;
  if (!run.languages.length) return { source: run.source, target: run.target };
  return { source: choose(state.from, run.source ?? run.languages[0].code), target: choose(state.to, run.target ?? run.languages.at(-1).code) };
}

/** Return the fields of a request that select the run and its languages. */
const runFields = (run) => ({ run: run.name, ...(run.languages.length ? languagesOf(run) : {}) });

/** Offer the languages of a multilingual run in place of the names of its languages. */
function showLanguages(run) {
  const languages = languagesOf(run);
  for (const [id, side] of [["from", "source"], ["to", "target"]]) {
    const select = byId(id);
    select.hidden = !run.languages.length;
    byId(`${side}-name`).classList.toggle("visually-hidden", !select.hidden);
    const label = ({ code, name }) => (name === code ? code : `${name} (${code})`);
    if (select.dataset.run !== run.name) select.replaceChildren(...run.languages.map((language) => html("option", { value: language.code }, label(language))));
    select.dataset.run = run.name;
    select.value = languages[side];
  }
}

function fillSelects() {
  const languages = (run) => (run.languages.length ? `${run.languages.length} languages` : `${run.source} → ${run.target}`);
  const label = (run) => [run.name, run.system !== run.name && run.system, languages(run)].filter(Boolean).join(" · ");
  const options = () => runs.map((run) => html("option", { value: run.name }, label(run)));
  byId("run").replaceChildren(...options());
  byId("compare").replaceChildren(html("option", { value: "" }, "no other run"), ...options());
  byId("beam").replaceChildren(html("option", { value: "" }, "default"), ...BEAM_SIZES.map((size) => html("option", { value: size }, size === 1 ? "1 (greedy)" : size)));
  for (const name of ["run", "compare", "beam", "from", "to"]) {
    byId(name).addEventListener("change", () => {
      const panel = { run: "0.", compare: "1.", from: "", to: "" }[name]; // another run or language has other token ids
      const forced = Object.fromEntries(Object.entries(state.forced).filter(([key]) => panel === undefined || !key.startsWith(panel)));
      change({ [name]: byId(name).value, forced, step: 0, word: "" });
      applyState();
    });
  }
}

/** Return the search for a run: undefined for its default, or a beam search of the selected size. */
function searchConfig(run) {
  if (!state.beam) return undefined;
  const defaults = run.search.kind === "Beam" ? run.search : { kind: "Beam" };
  return { ...defaults, size: Number(state.beam), num_groups: 1, n_best: 1, num_finished: null };
}

// ---- translation

const onSourceTyped = debounce(TYPING_DELAY, () => {
  setUserTranslation("");
  change({ text: byId("source").value, forced: {}, step: 0, word: "" });
  translate();
});

const onTranslationTyped = debounce(TYPING_DELAY, () => {
  change({ translation: byId("user-translation").value, step: 0, word: "" });
  userTranslations.delete(panels[0].sentences[state.sentence]?.source);
  for (const panel of panels) inspect(panel);
});

function setUserTranslation(translation) {
  onTranslationTyped.cancel();
  if (byId("user-translation").value !== translation) byId("user-translation").value = translation;
  change({ translation });
}

/** Translate the text with every run that is shown; cancels the previous translation. */
async function translate(retries = 0) {
  onSourceTyped.cancel();
  translationRequest.abort();
  translationRequest = new AbortController();
  const { signal } = translationRequest;
  byId("count").textContent = state.text.length > 500 ? `${state.text.length.toLocaleString("en")} characters` : "";
  showNotice("");
  byId("examples").hidden = Boolean(state.text) || !byId("examples").children.length;
  for (const panel of panels) Object.assign(panel, { sentences: [], error: null });
  if (!state.text.trim()) {
    for (const panel of panels) panel.inspection = null;
    updateTranslations();
    updateViews();
    return;
  }
  byId("views").classList.add("stale");
  try {
    await Promise.all(panels.map((panel) => translatePanel(panel, signal)));
    byId("announcement").textContent = panels.map((panel) => `${panels.length > 1 ? `${panel.run.name}: ` : ""}${panel.sentences.map((sentence) => sentence.text).join(" ")}`).join(" ");
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
  await streamEvents("/v1/stream", { ...runFields(panel.run), text: state.text, search: searchConfig(panel.run) }, signal, (name, data) => {
    if (name === "tokens") {
      const sentence = sentenceAt(data.sentence);
      if (!sentence.complete) Object.assign(sentence, { text: sentence.text + data.text, tentativeText: data.tentative_text });
    } else if (name === "sentence") {
      const best = data.hypotheses[0];
      Object.assign(sentenceAt(data.sentence), { source: data.source, text: best.text, tentativeText: "", complete: true, score: best.score, numTokens: best.tokens.length, truncatedSource: best.truncated_source, finished: best.finished });
      if (data.sentence === state.sentence) inspect(panel, signal);
    } else if (name === "done") {
      if (state.sentence >= panel.sentences.length) change({ sentence: 0 });
      inspect(panel, signal);
      for (const key of Object.keys(state.forced)) applyForcedTokens(panel, key, signal);
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

// ---- inspection

const inspectionRequest = (panel, sentence, fields) => ({ ...runFields(panel.run), text: sentence.source, search: searchConfig(panel.run), alternatives: 8, ...fields });

/** Inspect the selected sentence of a panel; only the latest request of a panel counts. */
async function inspect(panel, signal = translationRequest.signal) {
  const sentence = panel.sentences[state.sentence];
  if (!sentence?.complete) return;
  if (state.translation) userTranslations.set(sentence.source, state.translation);
  else if (userTranslations.has(sentence.source)) {
    setUserTranslation(userTranslations.get(sentence.source));
    for (const other of panels) if (other !== panel) inspect(other, signal);
  }
  const translation = state.translation.trim() || undefined;
  const prefix = translation ? undefined : state.forced[`${panel.index}.${state.sentence}`];
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
async function applyForcedTokens(panel, key, signal) {
  const [panelIndex, index] = key.split(".").map(Number);
  const sentence = panel.sentences[index];
  if (panelIndex !== panel.index || index === state.sentence || !sentence) return;
  try {
    showForcedTranslation(sentence, await post("/v1/lens", inspectionRequest(panel, sentence, { prefix: state.forced[key] }), signal));
    updateTranslations();
  } catch (error) {
    if (!signal.aborted) showError(error);
  }
}

/** Force the translation of the selected sentence to begin with tokens, or (null) restore the run's translation. */
function force(panel, tokenIds) {
  const key = `${panel.index}.${state.sentence}`;
  const forced = { ...state.forced };
  const sentence = panel.sentences[state.sentence];
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

function selectSentence(sentence) {
  if (sentence !== state.sentence) setUserTranslation("");
  change({ sentence, step: 0, word: "" });
  for (const panel of panels) inspect(panel);
  updateTranslations();
  scrollToSelected();
}

/** Scroll the lists of sentences, but not the page, to the selected sentence. */
function scrollToSelected() {
  for (const row of byId("target").querySelectorAll("[aria-current=true]")) {
    const list = row.closest("ol");
    const [box, frame] = [row.getBoundingClientRect(), list.getBoundingClientRect()];
    if (box.top < frame.top || box.bottom > frame.bottom) list.scrollTop += box.top - frame.top - 8;
  }
}

// ---- views

/** Show the selected view of the selected sentence, unless it is already shown. */
function updateViews() {
  const container = byId("views");
  const view = VIEWS[state.view].module;
  const isLoading = panels.some((panel) => panel.isLoading);
  container.classList.toggle("stale", isLoading);
  showSentenceBar();
  showTranslationScore();
  const content = JSON.stringify([state.view, panels.map((panel) => [panel.request, panel.inspection !== null, panel.error])]);
  const keepsOld = isLoading && container.childElementCount && container.dataset.view === state.view;
  if (keepsOld || content === shownContent) return; // the user may be interacting with it
  shownContent = content;
  container.dataset.view = state.view;
  container.classList.toggle("comparing", panels.length > 1);
  const isEmpty = view.needsSentence && !panels.some((panel) => panel.inspection || panel.error);
  if (isEmpty) container.replaceChildren(emptyMessage(isLoading ? "Loading …" : "Enter a sentence above to inspect its translation."));
  else view.show(container, context());
}

/** Compare the score of the user's translation with that of the run's. */
function showTranslationScore() {
  byId("user-translation-row").hidden = !panels.some((panel) => panel.sentences[state.sentence]?.complete);
  const scores = panels.map(({ run, sentences, inspection }) => {
    const sentence = sentences[state.sentence];
    if (!state.translation.trim() || !inspection || inspection.from_search || !sentence) return "";
    const { score, target, steps } = inspection;
    const best = sentence.unforced ?? sentence;
    const isEqual = Math.abs(score - best.score) < 1e-3 * Math.max(1, Math.abs(best.score));
    const comparison = target.text === best.text ? "the run's translation" : `${isEqual ? "as probable as" : score > best.score ? "more probable than" : "less probable than"} the run's translation`;
    return `${panels.length > 1 ? `${run.name}: ` : ""}log p ${formatNumber(score)} · ${formatPercent(Math.exp(score / steps.length))} per token · ${comparison}`;
  });
  const text = scores.filter(Boolean).join("; ");
  if (byId("translation-score").textContent !== text) byId("translation-score").textContent = text;
}

/** Show which of several sentences is selected, with buttons for the previous and the next one. */
function showSentenceBar() {
  const sentences = panels[0]?.sentences ?? [];
  const bar = byId("selected-sentence");
  bar.hidden = sentences.length < 2 || !VIEWS[state.view].module.needsSentence;
  if (bar.hidden) return;
  const focused = bar.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const button = (by, label, sign) => html("button", { type: "button", "aria-label": label, disabled: !sentences[state.sentence + by], click: () => selectSentence(state.sentence + by) }, sign);
  bar.replaceChildren(
    button(-1, "Previous sentence", "‹"),
    html("span", { class: "figures" }, `Sentence ${state.sentence + 1} of ${sentences.length}`),
    button(1, "Next sentence", "›"),
    html("span", { class: "muted one-line", dir: "auto" }, sentences[state.sentence]?.source ?? ""));
  if (!focused) return;
  const replacement = bar.querySelector(`[aria-label="${focused}"]`);
  (replacement.disabled ? bar.querySelector("button:not([disabled])") : replacement)?.focus();
}

function showTabs() {
  byId("tabs").replaceChildren(...Object.entries(VIEWS).map(([view, { title }]) => html("button", {
    type: "button", role: "tab", id: `tab-${view}`, "aria-controls": "views",
    click: () => openView(view), focus: () => view !== state.view && openView(view),
  }, title)));
  markTab();
}

function markTab() {
  for (const tab of byId("tabs").children) {
    const isSelected = tab.id === `tab-${state.view}`;
    tab.setAttribute("aria-selected", String(isSelected));
    tab.tabIndex = isSelected ? 0 : -1;
    if (isSelected) scrollToTab(tab);
  }
  byId("views").setAttribute("aria-labelledby", `tab-${state.view}`);
}

/** Scroll the row of tabs, but not the page, to a tab. */
function scrollToTab(tab) {
  const [box, frame] = [tab.getBoundingClientRect(), byId("tabs").getBoundingClientRect()];
  if (box.left < frame.left || box.right > frame.right) byId("tabs").scrollLeft += box.left - frame.left - (frame.width - box.width) / 2;
}

function openView(view) {
  change({ view });
  markTab();
  updateViews();
}

async function showExamples() {
  const { run } = panels[0];
  const container = byId("examples");
  if (container.dataset.run === run.name) return;
  container.dataset.run = run.name;
  const { examples } = await get(`/v1/runs/${encodeURIComponent(run.name)}/examples`).catch(() => ({ examples: [] }));
  const use = (text) => () => {
    byId("source").value = text;
    onSourceTyped();
  };
  container.replaceChildren(...examples.map((text) => html("button", { type: "button", lang: languageTag(languagesOf(run).source), dir: "auto", click: use(text) }, text)));
  container.hidden = Boolean(state.text) || !examples.length;
}

// ---- errors

function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function showError(error) {
  byId("busy").textContent = "";
  const message = error instanceof ServiceError ? error.message : "The page has failed: reload it.";
  byId("key").hidden = error.status !== 403;
  if (error.status === 403) removeApiKey();
  showNotice(error.retryAfter ? `${message} Trying again in a moment.` : message);
  byId("views").classList.remove("stale");
  updateTranslations();
}

// ---- start

function addListeners() {
  byId("source").addEventListener("input", () => {
    if (!runs.length) state.text = byId("source").value; // typed while the page loads: applyState() translates it
    byId("views").classList.add("stale");
    onSourceTyped();
  });
  byId("user-translation").addEventListener("input", onTranslationTyped);
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(byId("secret").value.trim());
    byId("key").hidden = true;
    applyState();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment of the address is the state
    byId("views").focus();
  });
  byId("copy").addEventListener("click", async () => {
    history.replaceState(null, "", `#${formatState(state)}`);
    byId("copy").textContent = await navigator.clipboard.writeText(location.href).then(() => "Copied", () => "Copy the address instead");
    setTimeout(() => { byId("copy").textContent = "Copy link"; }, 1500);
  });
  window.addEventListener("hashchange", () => {
    state = parseState(location.hash);
    if (runs.length) applyState(); // otherwise start() does
  });
  rovingFocus(byId("tabs"), "[role=tab]");
}

async function start() {
  setUpTheme();
  addListeners();
  try {
    const [servedRuns, languages] = await Promise.all([get("/v1/runs"), get("/languages")]);
    runs = servedRuns;
    languageNames = new Map(languages.map(({ code, name }) => [code, name]));
  } catch (error) {
    showError(error);
    return;
  }
  fillSelects();
  applyState();
}

start();
