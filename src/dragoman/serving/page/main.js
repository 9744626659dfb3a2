// The page: what is chosen, what is asked of the service, and what is shown when.

import * as attention from "./attention.js";
import * as curves from "./curves.js";
import * as layers from "./layers.js";
import * as positions from "./positions.js";
import * as probabilities from "./probabilities.js";
import * as tree from "./tree.js";
import * as theme from "./theme.js";
import { Failure, dropKey, get, listen, post, setKey } from "./api.js";
import { byId, figure, later, make, percent, roving } from "./dom.js";
import { VIEWS, read, write } from "./state.js";
import { show as showTranslation } from "./translation.js";
import { direction, joined } from "./words.js";

const VIEW = { attention, probabilities, beam: tree, layers, positions, training: curves };
const NAMES = { attention: "Attention", probabilities: "Probabilities", beam: "Beam", layers: "Layers", positions: "Positions", training: "Training" };
const BEAMS = [1, 2, 3, 4, 5, 8, 12];
const PATIENCE = 350; // milliseconds after the last letter
const KEPT = 60; // looks that are remembered
const RETRIES = 3;

let state = read(location.hash);
let known = []; // the runs that are served
let languages = new Map();
let sides = []; // for each run that is shown: the run, its sentences, and what is seen of the chosen one
let writing = new AbortController();
let drawn = ""; // what the views show now
const looks = new Map();
const owned = new Map(); // translations of one's own, by their sources

// ---- what is chosen

const writeLink = later(200, () => history.replaceState(null, "", `#${write(state)}`));

/** Change the state; what is quiet is drawn by whoever changed it. */
function change(patch) {
  Object.assign(state, patch);
  writeLink();
}

const named = (name) => known.find((run) => run.name === name);

function begin() {
  const asked = [named(state.run) ?? known[0], named(state.beside)].filter(Boolean);
  const missing = [state.run, state.beside].filter((name) => name && !named(name));
  state.run = asked[0]?.name ?? "";
  state.beside = asked[1]?.name ?? "";
  if (!BEAMS.includes(Number(state.beam))) state.beam = "";
  drawn = "";
  sides = asked.map((run, number) => ({ run, number, sentences: [], seen: null, forced: 0, error: null, busy: false }));
  const { source, target } = asked[0];
  byId("source").lang = source;
  byId("source").dir = direction(source);
  byId("source-name").textContent = languages.get(source) ?? source;
  byId("target-name").textContent = languages.get(target) ?? target;
  byId("run").value = state.run;
  byId("beside").value = state.beside;
  byId("beam").value = state.beam;
  if (byId("source").value !== state.text) byId("source").value = state.text;
  if (byId("own").value !== state.own) byId("own").value = state.own;
  byId("own").lang = target;
  tabs();
  suggest();
  translate();
  if (missing.length) notice(`The link asks for ${missing.join(" and ")}, which is not served here; this is ${state.run}.`);
}

function fillChoices() {
  const label = (run) => [run.name, run.system !== run.name && run.system, `${run.source} → ${run.target}`].filter(Boolean).join(" · ");
  const options = known.map((run) => make("option", { value: run.name }, label(run)));
  byId("run").replaceChildren(...options);
  byId("beside").replaceChildren(make("option", { value: "" }, "nothing else"), ...options.map((one) => one.cloneNode(true)));
  byId("beam").replaceChildren(make("option", { value: "" }, "its own"), ...BEAMS.map((size) => make("option", { value: size }, size === 1 ? "1 (greedy)" : size)));
  for (const name of ["run", "beside", "beam"]) {
    byId(name).addEventListener("change", () => {
      const other = { run: "0.", beside: "1." }[name]; // whose tokens may be other ones now
      const forced = Object.fromEntries(Object.entries(state.forced).filter(([place]) => !other || !place.startsWith(other)));
      change({ [name]: byId(name).value, forced, step: 0, word: "" });
      begin(); // with one's own translation, which other runs may think differently of
    });
  }
}

/** How a run shall search: as it does by itself, or with a beam of another width. */
function search(run) {
  if (!state.beam) return undefined;
  const own = run.search.kind === "Beam" ? run.search : { kind: "Beam" };
  return { ...own, size: Number(state.beam), groups: 1, best: 1, num_finished: null };
}

// ---- translating

const typed = later(PATIENCE, () => {
  takeOwn("");
  change({ text: byId("source").value, forced: {}, step: 0, word: "" });
  translate();
});

const typedOwn = later(PATIENCE, () => {
  change({ own: byId("own").value, step: 0, word: "" });
  owned.delete(sides[0].sentences[state.sentence]?.source);
  for (const side of sides) look(side);
});

/** Another translation of one's own, or ("") the run's again. */
function takeOwn(own) {
  typedOwn.cancel();
  if (byId("own").value !== own) byId("own").value = own;
  change({ own });
}

/** Translate the text with every run that is shown; what was being translated before is given up. */
async function translate(tries = 0) {
  typed.cancel();
  writing.abort();
  writing = new AbortController();
  const { signal } = writing;
  count();
  notice("");
  byId("examples").hidden = Boolean(state.text) || !byId("examples").children.length;
  for (const side of sides) Object.assign(side, { sentences: [], complete: false, error: null });
  if (!state.text.trim()) {
    for (const side of sides) Object.assign(side, { seen: null, complete: true });
    showAll();
    return;
  }
  byId("views").classList.add("stale");
  try {
    await Promise.all(sides.map((side) => translateOne(side, signal)));
    byId("announcement").textContent = sides.map((side) => spoken(side)).join(" ");
  } catch (error) {
    if (signal.aborted) return;
    if (error.retry && tries < RETRIES) {
      setTimeout(() => signal.aborted || translate(tries + 1), 1000 * error.retry);
    }
    fail(error);
  } finally {
    if (!signal.aborted) {
      busy();
      showTranslation(byId("target"), context());
      reveal();
    }
  }
}

async function translateOne(side, signal) {
  const paint = painter(() => {
    showTranslation(byId("target"), context());
    showChosen();
  }, signal);
  const row = (number) => (side.sentences[number] ??= { source: "", text: "", likely: "", complete: false });
  busy("writing …");
  paint();
  await listen("/v1/stream", { run: side.run.name, text: state.text, search: search(side.run) }, signal, (name, told) => {
    if (name === "tokens") {
      const sentence = row(told.sentence);
      if (!sentence.complete) Object.assign(sentence, { text: sentence.text + told.text, likely: told.tentative_text });
    } else if (name === "sentence") {
      const best = told.hypotheses[0];
      Object.assign(row(told.sentence), { source: told.source, text: best.text, likely: "", complete: true, score: best.score, pieces: best.tokens.length, truncatedSource: best.truncated_source, finished: best.finished });
      if (told.sentence === state.sentence) look(side, signal);
    } else if (name === "done") {
      side.complete = true;
      if (state.sentence >= side.sentences.length) change({ sentence: 0 });
      look(side, signal);
      for (const key of Object.keys(state.forced)) reforce(side, key, signal);
    }
    paint();
  });
}

/** At most once a frame, however fast the pieces come. */
function painter(work, signal) {
  let planned = false;
  return () => {
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => {
      planned = false;
      if (!signal.aborted) work();
    });
  };
}

const spoken = (side) => `${sides.length > 1 ? `${side.run.name}: ` : ""}${side.sentences.map((one) => one.text).join(" ")}`;

// ---- looking

/** Ask what can be seen of a sentence, unless it is known; the latest question counts. */
async function look(side, signal = writing.signal) {
  const sentence = side.sentences[state.sentence];
  if (!sentence?.complete) return;
  if (state.own) owned.set(sentence.source, state.own);
  else if (owned.has(sentence.source)) {
    takeOwn(owned.get(sentence.source));
    for (const other of sides) if (other !== side) look(other, signal);
  }
  const asked = { run: side.run.name, text: sentence.source, search: search(side.run), alternatives: 8 };
  const own = state.own.trim();
  const prefix = own ? undefined : state.forced[`${side.number}.${state.sentence}`];
  if (own) asked.translation = own;
  else if (prefix) asked.prefix = prefix;
  const key = JSON.stringify(asked);
  if (side.asked === key && (side.busy || side.seen)) return showViews();
  Object.assign(side, { asked: key, busy: true, error: null });
  try {
    const answer = looks.get(key) ?? (await post("/v1/lens", asked, signal));
    looks.set(key, answer);
    if (looks.size > KEPT) looks.delete(looks.keys().next().value);
    if (side.asked !== key || signal.aborted) return;
    Object.assign(side, { seen: answer.inspection, forced: answer.forced_tokens, busy: false });
    if (prefix) adopt(sentence, answer);
  } catch (error) {
    if (signal.aborted || side.asked !== key) {
      if (side.asked === key) Object.assign(side, { asked: null, busy: false });
      return;
    }
    Object.assign(side, { seen: null, busy: false, asked: null, error: error.message });
    if (error.status === 403) fail(error);
  }
  showViews();
  showTranslation(byId("target"), context());
}

/** A sentence whose beginning was forced is shown as it then became. */
function adopt(sentence, { inspection: seen, forced_tokens: forced }) {
  const begun = joined(seen.steps.slice(0, forced).map((step) => step.token));
  sentence.own ??= { text: sentence.text, score: sentence.score, pieces: sentence.pieces };
  Object.assign(sentence, { text: seen.target.text, score: seen.score, pieces: seen.steps.length, forced: true, begun: seen.target.text.startsWith(begun) ? begun : "" });
}

/** Of another sentence than the chosen one, as a link may have it. */
async function reforce(side, place, signal) {
  const [number, row] = place.split(".").map(Number);
  const sentence = side.sentences[row];
  if (number !== side.number || row === state.sentence || !sentence) return;
  const asked = { run: side.run.name, text: sentence.source, search: search(side.run), alternatives: 8, prefix: state.forced[place] };
  try {
    adopt(sentence, await post("/v1/lens", asked, signal));
    showTranslation(byId("target"), context());
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

/** Let a translation begin with these tokens, or (null) as the run would have it. */
function force(side, tokens) {
  const place = `${side.number}.${state.sentence}`;
  const forced = { ...state.forced };
  const sentence = side.sentences[state.sentence];
  if (tokens) forced[place] = tokens;
  else {
    delete forced[place];
    if (sentence.own) Object.assign(sentence, sentence.own, { own: undefined, forced: false, begun: "" });
  }
  owned.delete(sentence.source);
  takeOwn("");
  change({ forced, step: 0, word: "" });
  look(side);
}

function choose(sentence) {
  if (sentence !== state.sentence) takeOwn("");
  change({ sentence, step: 0, word: "" });
  for (const side of sides) look(side);
  showTranslation(byId("target"), context());
  reveal();
}

/** Scroll the lists of sentences, and nothing else, to the chosen one. */
function reveal() {
  for (const row of byId("target").querySelectorAll("[aria-current=true]")) {
    const [list, box] = [row.closest("ol"), row.getBoundingClientRect()];
    const frame = list.getBoundingClientRect();
    if (box.top < frame.top || box.bottom > frame.bottom) list.scrollTop += box.top - frame.top - 8;
  }
}

// ---- showing

const context = () => ({ state, sides, change, choose, force, get });

function showAll() {
  showTranslation(byId("target"), context());
  showViews();
}

/** The chosen view of the chosen sentence. */
function showViews() {
  const place = byId("views");
  const view = VIEW[state.view];
  const settled = sides.every((side) => !side.busy);
  place.classList.toggle("stale", !settled);
  showChosen();
  showOwn();
  const now = JSON.stringify([state.view, sides.map((side) => [side.asked, side.seen !== null, side.error])]);
  const waits = !settled && place.childElementCount && place.dataset.view === state.view;
  if (waits || now === drawn) return; // what is drawn already may be in somebody's hands
  drawn = now;
  place.dataset.view = state.view;
  place.classList.toggle("beside", sides.length > 1);
  const nothing = view.ofSentence && !sides.some((side) => side.seen || side.error);
  if (nothing) place.replaceChildren(make("p", { class: "empty" }, settled ? "Type a sentence above, and this shows what the model made of it." : "Looking …"));
  else view.show(place, context());
}

/** What the runs think of one's own translation, beside their own. */
function showOwn() {
  byId("yours").hidden = !sides.some((side) => side.sentences[state.sentence]?.complete);
  const opinions = sides.map((side) => {
    const [sentence, { seen }] = [side.sentences[state.sentence], side];
    if (!state.own.trim() || !seen || seen.from_search || !sentence) return "";
    const found = sentence.own ?? sentence; // what the run had written before it was told how to begin
    const near = Math.abs(seen.score - found.score) < 1e-3 * Math.max(1, Math.abs(found.score));
    const better = seen.target.text === found.text ? "the run's own" : near ? "as likely as the run's own" : seen.score > found.score ? "likelier than the run's own" : "less likely than the run's own";
    return `${sides.length > 1 ? `${side.run.name}: ` : ""}log p ${figure(seen.score)} · ${percent(Math.exp(seen.score / seen.steps.length))} a piece · ${better}`;
  });
  const said = opinions.filter(Boolean).join("; ");
  if (byId("own-figures").textContent !== said) byId("own-figures").textContent = said;
}

/** Which of several sentences is looked into. */
function showChosen() {
  const rows = sides[0]?.sentences ?? [];
  const bar = byId("chosen");
  bar.hidden = rows.length < 2 || !VIEW[state.view].ofSentence;
  if (bar.hidden) return;
  const held = bar.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const step = (by, label, sign) => make("button", { type: "button", "aria-label": label, disabled: !rows[state.sentence + by], click: () => choose(state.sentence + by) }, sign);
  bar.replaceChildren(
    step(-1, "Previous sentence", "‹"),
    make("span", { class: "figures" }, `Sentence ${state.sentence + 1} of ${rows.length}`),
    step(1, "Next sentence", "›"),
    make("span", { class: "quiet one-line", dir: "auto" }, rows[state.sentence]?.source ?? ""));
  if (!held) return;
  const again = bar.querySelector(`[aria-label="${held}"]`);
  (again.disabled ? bar.querySelector("button:not([disabled])") : again)?.focus();
}

function tabs() {
  const list = byId("tabs");
  list.replaceChildren(...VIEWS.map((view) => make("button", {
    type: "button", role: "tab", id: `tab-${view}`, "aria-controls": "views", "aria-selected": String(view === state.view), tabindex: view === state.view ? 0 : -1,
    click: () => open(view), focus: () => view !== state.view && open(view),
  }, NAMES[view])));
  byId("views").setAttribute("aria-labelledby", `tab-${state.view}`);
}

function open(view) {
  change({ view });
  for (const tab of byId("tabs").children) {
    const chosen = tab.id === `tab-${view}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  byId("views").setAttribute("aria-labelledby", `tab-${view}`);
  showViews();
}

function count() {
  const size = state.text.length;
  byId("count").textContent = size > 500 ? `${size.toLocaleString("en")} characters` : "";
}

function busy(text = "") {
  byId("busy").textContent = text;
}

async function suggest() {
  const { run } = sides[0];
  const place = byId("examples");
  if (place.dataset.run === run.name) return;
  place.dataset.run = run.name;
  const found = await get(`/v1/runs/${encodeURIComponent(run.name)}/examples`).catch(() => ({ examples: [] }));
  const take = (text) => () => {
    byId("source").value = text;
    typed();
  };
  place.replaceChildren(...found.examples.map((text) => make("button", { type: "button", lang: run.source, dir: "auto", click: take(text) }, text)));
  place.hidden = Boolean(state.text) || !found.examples.length;
}

// ---- what goes wrong

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function fail(error) {
  busy();
  const own = error instanceof Failure ? error.message : "Something in this page went wrong: load it again.";
  byId("key").hidden = error.status !== 403;
  if (error.status === 403) dropKey();
  notice(error.retry ? `${own} Trying again in a moment.` : own);
  byId("views").classList.remove("stale");
  showTranslation(byId("target"), context());
}

// ---- the beginning

function listenToPage() {
  byId("source").addEventListener("input", () => {
    if (!known.length) state.text = byId("source").value; // typed while the page loads: begin() translates it
    byId("views").classList.add("stale");
    typed();
  });
  byId("own").addEventListener("input", typedOwn);
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("secret").value.trim());
    byId("key").hidden = true;
    begin();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // what stands after # is the state
    byId("views").focus();
  });
  byId("copy").addEventListener("click", async () => {
    history.replaceState(null, "", `#${write(state)}`);
    const said = await navigator.clipboard.writeText(location.href).then(() => "Copied", () => "Copy it from above");
    byId("copy").textContent = said;
    setTimeout(() => { byId("copy").textContent = "Copy link"; }, 1500);
  });
  window.addEventListener("hashchange", () => {
    state = read(location.hash);
    if (known.length) begin(); // or else it will, when the runs are known
  });
  roving(byId("tabs"), "[role=tab]");
}

async function start() {
  theme.begin();
  listenToPage();
  try {
    const [runs, named] = await Promise.all([get("/v1/runs"), get("/languages")]);
    known = runs;
    languages = new Map(named.map((one) => [one.code, one.name]));
  } catch (error) {
    fail(error);
    return;
  }
  fillChoices();
  begin();
}

start();
