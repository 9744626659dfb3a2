// What all modules of the page share: its state, the runs, and one panel for each run that is shown.

import { get, post } from "./api.js";
import { debounce } from "./dom.js";
import { formatState, parseState } from "./state.js";

export const page = {
  state: parseState(location.hash),
  runs: [], // that are served
  languageNames: new Map(), // by code
  settings: { maxCharacters: 0, files: false, fileFormats: [] }, // of the service; 0: no limit
  detected: null, // the language of the text, if it is to be detected
  panels: [], // {run, index, sentences, inspection, forced, error, isLoading, request} for each run that is shown
  translation: new AbortController(), // of the current translation and its inspections
  actions: {}, // functions that views may call: selectSentence, force; and those that modules call to avoid cycles
};

export const TYPING_DELAY = 350; // milliseconds after the last key

const updateLink = debounce(200, () => history.replaceState(null, "", linkToState()));

/** Return the fragment of the address that restores the state. */
export const linkToState = () => `#${formatState(page.state)}`;

/** Change fields of the state. */
export function change(patch) {
  Object.assign(page.state, patch);
  updateLink();
}

/** Return what a view is given. */
export const context = () => ({ state: page.state, panels: page.panels, change, get, post, selectSentence: page.actions.selectSentence, force: page.actions.force });

export const findRun = (name) => page.runs.find((run) => run.name === name);

/** Return source and target language of a run: of a multilingual one those that are selected, or its default. */
export function languagesOf(run) {
  const choose = (code, byDefault) => run.languages.find((language) => language.code === code)?.code ?? byDefault;
  if (!run.languages.length) return { source: run.source, target: run.target };
  return { source: choose(page.state.from, run.source ?? run.languages[0].code), target: choose(page.state.to, run.target ?? run.languages.at(-1).code) };
}

/** Return the fields of a request that select the run and its languages. */
export const runFields = (run) => ({ run: run.name, ...(run.languages.length ? languagesOf(run) : {}) });

/** Return the fields of a query that select the languages of a multilingual run; none for other runs. */
export const languageQuery = (run) => (run.languages.length ? languagesOf(run) : {});

/** Return the search for a run: undefined for its default, or a beam search of the selected size. */
export function searchConfig(run) {
  if (!page.state.beam) return undefined;
  const defaults = run.search.kind === "Beam" ? run.search : { kind: "Beam" };
  return { ...defaults, size: Number(page.state.beam), num_groups: 1, n_best: 1, num_finished: null };
}
