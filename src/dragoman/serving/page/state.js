// What is seen, as the link in the address says it.

export const VIEWS = ["attention", "probabilities", "beam", "layers", "positions", "training"];

const START = {
  run: "", beside: "", text: "", // what is translated, by which runs
  beam: "", // its width; "": the run's own search
  own: "", // a translation of the chosen sentence that is looked into instead of the run's
  sentence: 0, view: "attention",
  kind: "cross", layer: 0, head: 0, // 0: all of them
  unit: "words", word: "", // the word whose looks are held: q3 or k3, a row or a column
  step: 0, // of the beam; 0: the last
  forced: {}, // by the side (0, 1) and the sentence, the tokens that its translation is to begin with
};

/** A state from what stands after # in an address; what cannot be read is left as it is at the start. */
export function read(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...START, forced: {} };
  for (const name of ["run", "beside", "text", "beam", "own", "view", "kind", "unit", "word"]) state[name] = given.get(name) ?? START[name];
  for (const name of ["sentence", "layer", "head", "step"]) state[name] = Math.max(0, Number.parseInt(given.get(name), 10) || 0);
  if (!VIEWS.includes(state.view)) state.view = START.view;
  for (const part of (given.get("forced") ?? "").split("_")) {
    const [, place, tokens] = /^(\d+\.\d+)-(\d+(?:\.\d+)*)$/.exec(part) ?? [];
    if (place) state.forced[place] = tokens.split(".").map(Number);
  }
  return state;
}

/** What stands after #: only what differs from the start. */
export function write(state) {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name !== "forced" && value !== START[name]) told.set(name, value);
  }
  const forced = Object.entries(state.forced).map(([place, tokens]) => `${place}-${tokens.join(".")}`);
  if (forced.length) told.set("forced", forced.join("_"));
  return told.toString();
}
