// The state of the page, which is stored in the fragment of its address.

import { VIEWS } from "./views.js";

const DEFAULTS = {
  run: "", compare: "", text: "", // the runs, and the text they translate
  from: "", to: "", // languages of a multilingual run; "": its default
  beam: "", // beam size; "": the default search of the run
  translation: "", // the user's translation of the selected sentence, inspected instead of the run's
  sentence: 0, view: "attention",
  kind: "cross", layer: 0, head: 0, // of attention; 0: mean of all
  unit: "words", word: "", // the pinned word: q3 or k3 for a row or a column
  analysis: "", // filters and order of the table of errors, as the query of a request
  trainingStep: "", // of the history of a training; "": the last
  heads: "", // several heads in colors, such as 1,3; "": the selected head
  step: 0, // of the beam; 0: the first
  walkStep: 0, walkPosition: 0, walkHead: 0, walkAt: 0, // of a walk: target and source token, head, and the step of the computation
  neuronQuery: 0, // the query whose neurons are shown
  decoding: "beam", // or sampling, with the settings of its sliders; "": the defaults of the run
  temperature: "", topK: "", topP: "", beamSize: "", lengthPenalty: "", coveragePenalty: "", seed: 0,
  corpus: "low lower newest widest", corpusKind: "text", // what byte-pair encoding is learned from: text or counts
  ties: "first", symbols: "characters", // of byte-pair encoding
  bpeVocabulary: "", bpeCompression: "", // limits of byte-pair encoding; "": none
  merge: 0, bpeWord: "lowest", // the number of merges that are shown, and the word that is segmented
  present: 0, // 1: presentation mode
  forced: {}, // token ids that a translation must begin with, by "panel.sentence"
};
const FORMER_NAMES = { compare: "beside", translation: "own" }; // of links from earlier versions

/** Parse the fragment of an address; invalid values are replaced by defaults. */
export function parseState(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...DEFAULTS, forced: {} };
  for (const [name, byDefault] of Object.entries(DEFAULTS)) {
    const value = fields.get(name) ?? fields.get(FORMER_NAMES[name]);
    if (typeof byDefault === "string") state[name] = value ?? byDefault;
    else if (typeof byDefault === "number") state[name] = Math.max(0, Number.parseInt(value, 10) || 0);
  }
  if (!Object.hasOwn(VIEWS, state.view)) state.view = DEFAULTS.view;
  if (state.unit === "pieces") state.unit = "tokens";
  for (const part of (fields.get("forced") ?? "").split("_")) {
    const [, key, ids] = /^(\d+\.\d+)-(\d+(?:\.\d+)*)$/.exec(part) ?? [];
    if (key) state.forced[key] = ids.split(".").map(Number);
  }
  return state;
}

/** Return the fragment of an address with the values that differ from the defaults. */
export function formatState(state) {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name !== "forced" && value !== DEFAULTS[name]) fields.set(name, value);
  }
  const forced = Object.entries(state.forced).map(([key, ids]) => `${key}-${ids.join(".")}`);
  if (forced.length) fields.set("forced", forced.join("_"));
  return fields.toString();
}
