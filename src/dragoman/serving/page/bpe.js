// Byte-pair encoding of a short text, merge by merge: pair counts, ties, the vocabulary, the words, and a segmented word.

import { debounce, emptyMessage, html, select, toggleGroup } from "./dom.js";

export const needsSentence = false;

const MAX_CHARACTERS = 2000;
const MAX_SHOWN_WORDS = 60;
const TYPING_DELAY = 350; // milliseconds after the last key
const PLAY_INTERVAL = 1200; // milliseconds per merge
const END_OF_WORD = "</w>";
const EXAMPLES = [
  ["Each word once", { corpus: "low lower newest widest", corpusKind: "text" }],
  ["Classical counts", { corpus: "low=5 lower=2 newest=6 widest=3", corpusKind: "counts" }],
  ["A sentence", { corpus: "she sells sea shells by the sea shore the shells she sells are sea shells", corpusKind: "text" }],
];

let playback = null; // timer
let request = new AbortController();

export function show(container, { state, change, post }) {
  stopPlayback();
  let trace = null; // the response of the service

  // ---- the text and the settings

  const field = html("textarea", { id: "bpe-corpus", rows: 2, maxlength: MAX_CHARACTERS, spellcheck: "false", dir: "auto", "aria-describedby": "bpe-error", input: debounce(TYPING_DELAY, () => restart({ corpus: field.value })) });
  const word = html("input", { id: "bpe-word", type: "text", maxlength: 100, spellcheck: "false", autocomplete: "off", dir: "auto", input: () => { change({ bpeWord: word.value }); showWord(); } });
  const error = html("p", { id: "bpe-error", class: "bpe-error", role: "alert" });
  const number = (label, name, attributes) => {
    const input = html("input", { type: "number", value: state[name], ...attributes, input: debounce(TYPING_DELAY, () => restart({ [name]: input.checkValidity() ? input.value : "" })) });
    return html("label", { class: "choice" }, label, input);
  };
  const kinds = () => toggleGroup("Input", [["text", "Text"], ["counts", "Words with counts"]], state.corpusKind, (corpusKind) => restart({ corpusKind }));
  const inputKind = html("span", {}, kinds());
  const settings = html("div", { class: "toolbar" }, inputKind,
    select("Ties", [["first", "first in the text"], ["alphabetical", "alphabetical"]], state.ties, (ties) => restart({ ties })),
    select("Symbols", [["characters", "characters"], ["bytes", "UTF-8 bytes"]], state.symbols, (symbols) => restart({ symbols })),
    number("Stop at vocabulary", "bpeVocabulary", { min: 1, max: 100000, placeholder: "–" }),
    number("or at compression", "bpeCompression", { min: 1, max: 1000, step: "any", placeholder: "–" }));
  const useExample = (fields) => () => {
    field.value = fields.corpus;
    restart(fields);
    inputKind.replaceChildren(kinds());
  };
  const examples = html("div", { class: "examples" }, EXAMPLES.map(([name, fields]) => html("button", { type: "button", click: useExample(fields) }, name)));

  // ---- the steps

  const button = (label, sign, click) => html("button", { type: "button", "aria-label": label, title: label, click }, sign);
  const back = button("Previous merge", "◀", () => goTo(state.merge - 1));
  const forward = button("Next merge", "▶|", () => goTo(state.merge + 1));
  const play = button("Play", "▶", () => (playback ? stopPlayback() : startPlayback()));
  const slider = html("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": "Number of merges", input: () => goTo(Number(slider.value)) });
  const position = html("output", { class: "figures" });
  const steps = html("div", { class: "toolbar" },
    html("div", { class: "group", role: "group", "aria-label": "Merges" }, button("Before the first merge", "|◀", () => goTo(0)), back, play, forward, button("Last merge", "▶▶", () => goTo(trace.merges.length))),
    slider, position, html("span", { class: "muted bpe-keys" }, "← → Home End"));
  const headline = html("p", { class: "bpe-headline", role: "status" });
  const numbers = html("dl", { class: "bpe-numbers figures" });
  const pairs = html("div");
  const vocabulary = html("div", { class: "symbols" });
  const words = html("ul", { class: "bpe-words" });
  const segmentation = html("ol", { class: "bpe-segmentation" });
  const part = (title, ...content) => html("section", {}, html("h3", {}, title), ...content);
  const result = html("div", { class: "bpe-result" }, steps, headline, numbers,
    html("div", { class: "bpe-columns" },
      part("Pairs in this text", pairs),
      html("div", {},
        part("Vocabulary", vocabulary),
        part("Text", words),
        part("Segment a word", html("label", { class: "choice", for: "bpe-word" }, "Word", word), segmentation))));
  const root = html("div", { class: "bpe", keydown: onKey }, html("label", { class: "muted", for: "bpe-corpus" }, "Learn from"), field, examples, settings, error, result);
  field.value = state.corpus;
  word.value = state.bpeWord;
  result.hidden = true;
  container.replaceChildren(root);
  load();

  function restart(fields) {
    change({ ...fields, merge: 0 });
    load();
  }

  /** Ask the service for all merges; only the latest request counts. */
  async function load() {
    stopPlayback();
    request.abort();
    request = new AbortController();
    const { signal } = request;
    const fields = { text: state.corpus, counts: state.corpusKind === "counts", ties: state.ties, utf8_bytes: state.symbols === "bytes" };
    if (state.bpeVocabulary) fields.vocab_size = Number(state.bpeVocabulary);
    if (state.bpeCompression) fields.compression_ratio = Number(state.bpeCompression);
    try {
      const response = await post("/v1/bpe", fields, signal);
      if (signal.aborted) return;
      trace = response;
      error.textContent = "";
      result.hidden = false;
      slider.max = trace.merges.length;
      goTo(state.merge);
    } catch (failure) {
      if (signal.aborted) return;
      error.textContent = failure.message;
      result.hidden = true;
    }
  }

  function goTo(target) {
    const merge = Math.max(0, Math.min(trace.merges.length, target));
    change({ merge });
    slider.value = merge;
    position.textContent = `merge ${merge} of ${trace.merges.length}`;
    back.setAttribute("aria-disabled", String(merge === 0)); // disabled buttons would lose the focus
    forward.setAttribute("aria-disabled", String(merge === trace.merges.length));
    showHeadline();
    showPairs();
    showVocabulary();
    showWords();
    showWord();
  }

  function onKey(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (!trace || result.hidden || event.target.matches("input, textarea, select") || !(event.key in moves)) return;
    event.preventDefault();
    goTo(state.merge + moves[event.key]);
  }

  function startPlayback() {
    if (state.merge === trace.merges.length) goTo(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
    const timer = setInterval(() => (container.contains(root) && state.merge < trace.merges.length ? goTo(state.merge + 1) : stopPlayback()), PLAY_INTERVAL);
    playback = { timer, onStop: () => { play.textContent = "▶"; play.setAttribute("aria-label", "Play"); } };
  }

  // ---- the text after `state.merge` merges

  const done = () => trace.merges[state.merge - 1]; // the latest merge
  const next = () => trace.merges[state.merge];
  const newSymbol = () => done()?.pair.join("");

  function showHeadline() {
    const merge = done();
    headline.replaceChildren(...(merge
      ? [`Merge ${state.merge}: `, symbol(merge.pair[0]), " + ", symbol(merge.pair[1]), " → ", symbol(newSymbol(), "new"), ` occurred ${merge.count === 1 ? "once" : `${merge.count.toLocaleString("en")} times`}`, merge.tied.length ? `, as often as ${merge.tied.length} other ${merge.tied.length === 1 ? "pair" : "pairs"}.` : "."]
      : ["Before the first merge: every word is a sequence of single symbols and the end-of-word symbol ", symbol(END_OF_WORD), "."]));
    if (state.merge === trace.merges.length) headline.append(` Stopped: ${trace.stopped}.`);
    const length = merge?.num_symbols ?? trace.words.reduce((sum, [count, symbols]) => sum + count * symbols.length, 0);
    const values = { vocabulary: `${currentVocabulary().length} symbols`, text: `${length.toLocaleString("en")} symbols`, "compression ratio": (merge?.compression ?? 1).toFixed(2) };
    numbers.replaceChildren(...Object.entries(values).map(([name, value]) => html("div", {}, html("dt", { class: "muted" }, name), html("dd", {}, value))));
  }

  function showPairs() {
    const counts = next()?.pair_counts ?? trace.final_counts;
    if (!counts.length) {
      pairs.replaceChildren(emptyMessage("Every word is one symbol: there are no pairs any more."));
      return;
    }
    const chosen = next()?.pair.join(" ");
    const largest = counts[0][2];
    const isTied = counts.filter(([, , count]) => count === largest).length > 1;
    const rows = counts.map(([left, right, count]) => {
      const isChosen = `${left} ${right}` === chosen;
      const note = isChosen ? "merged next" : isTied && count === largest ? "tied" : "";
      return html("tr", { class: isChosen ? "chosen" : note },
        html("th", { scope: "row" }, symbol(left), symbol(right)),
        html("td", {}, html("span", { class: "bar" }), count.toLocaleString("en")),
        html("td", { class: "note" }, note));
    });
    rows.forEach((row, n) => row.querySelector(".bar").style.setProperty("--share", counts[n][2] / largest)); // the page forbids style attributes
    const more = (next()?.num_pairs ?? counts.length) - counts.length;
    const head = html("tr", {}, ["pair", "count", ""].map((text) => html("th", { scope: "col" }, text)));
    pairs.replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, rows)), more > 0 ? html("p", { class: "muted" }, `and ${more.toLocaleString("en")} more`) : "");
  }

  function currentVocabulary() {
    return [...new Set([...trace.vocabulary, ...trace.merges.slice(0, state.merge).map(({ pair }) => pair.join(""))])];
  }

  function showVocabulary() {
    vocabulary.replaceChildren(...currentVocabulary().map((name) => symbol(name, name === newSymbol() ? "new" : "")));
  }

  const mergeAll = (symbols) => trace.merges.slice(0, state.merge).reduce((merged, { pair }) => mergePair(merged, pair), symbols);
  const symbolRow = (symbols) => symbols.map((name) => symbol(name, name === newSymbol() ? "new" : ""));

  function showWords() {
    const rows = trace.words.slice(0, MAX_SHOWN_WORDS).map(([count, symbols]) => html("li", { class: "symbols" }, symbolRow(mergeAll(symbols)), count > 1 ? html("span", { class: "muted figures" }, `× ${count.toLocaleString("en")}`) : ""));
    const more = trace.words.length - rows.length;
    words.replaceChildren(...rows, ...(more > 0 ? [html("li", { class: "muted" }, `and ${more.toLocaleString("en")} more words`)] : []));
  }

  /** Show how a word is segmented: its initial symbols, and every merge up to the current one that changes it. */
  function showWord() {
    if (!trace || !word.value.trim()) {
      segmentation.replaceChildren();
      return;
    }
    let symbols = initialSymbols(word.value.trim(), state.symbols === "bytes");
    const rows = [html("li", { class: "symbols" }, symbols.map((name) => symbol(name)))];
    trace.merges.slice(0, state.merge).forEach(({ pair }, n) => {
      const merged = mergePair(symbols, pair);
      if (merged.length === symbols.length) return;
      symbols = merged;
      rows.push(html("li", { class: "symbols" }, symbols.map((name) => symbol(name, name === pair.join("") ? "new" : "")), html("span", { class: "muted figures" }, `merge ${n + 1}`)));
    });
    segmentation.replaceChildren(...rows);
  }
}

function stopPlayback() {
  if (!playback) return;
  clearInterval(playback.timer);
  playback.onStop();
  playback = null;
}

const symbol = (name, className = "") => html("span", { class: `symbol ${className}`.trim(), dir: "auto" }, name);

/** Replace every occurrence of a pair, from left to right, by one symbol. */
function mergePair(symbols, [left, right]) {
  const merged = [];
  for (const name of symbols) {
    if (merged.length && merged.at(-1) === left && name === right) merged[merged.length - 1] = left + right;
    else merged.push(name);
  }
  return merged;
}

/** Return the characters or bytes of a word, and the end-of-word symbol. */
function initialSymbols(word, asBytes) {
  const letters = asBytes ? [...new TextEncoder().encode(word)].map((byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`) : [...word];
  return [...letters, END_OF_WORD];
}
