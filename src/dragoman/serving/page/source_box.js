// The source text: marks behind it, and the number of characters.

import { byId, html } from "./dom.js";
import { page } from "./session.js";

const NEARLY_FULL = 0.9; // share of the limit from which the number of characters is highlighted
let pointedSentence = null; // whose translation the pointer or the focus is on

/** Return how many characters a text has more than the service accepts; 0 or less if it is accepted. */
export const excessCharacters = (text) => (page.settings.maxCharacters ? [...text].length - page.settings.maxCharacters : 0);

/** Show the number of characters, the limit, and a warning shortly before it. */
export function showCount() {
  const { value } = byId("source");
  const limit = page.settings.maxCharacters;
  const used = [...value].length; // code points, as the service counts
  const format = (number) => number.toLocaleString("en");
  const share = limit ? used / limit : 0;
  byId("count").textContent = `${limit ? `${format(used)} / ${format(limit)}` : format(used)}${share > 1 ? ": too long" : share > NEARLY_FULL ? ": nearly full" : ""}`;
  byId("count").classList.toggle("nearly-full", share > NEARLY_FULL);
  byId("clear").hidden = !value;
}

/** Return where each sentence of a panel is in the text: [begin, end], or null. */
function sentenceRanges(panel) {
  let cursor = 0;
  return panel.sentences.map(({ source }) => {
    const begin = source ? page.state.text.indexOf(source, cursor) : -1;
    if (begin < 0) return null;
    cursor = begin + source.length;
    return [begin, cursor];
  });
}

/** Mark the source of the sentence that is pointed at or selected, and words that warnings are about. */
export function markSource(pointed = pointedSentence) {
  pointedSentence = pointed;
  const [text, container] = [byId("source").value, byId("source-marks")];
  const ranges = []; // [begin, end, class]
  if (text === page.state.text) {
    for (const panel of page.panels) {
      sentenceRanges(panel).forEach((range, n) => {
        if (!range) return;
        if (panel.index === 0 && panel.sentences.length > 1 && n === (pointed ?? page.state.sentence)) ranges.push([...range, pointed === null ? "selected" : "pointed"]);
        for (const { source_spans: spans } of panel.sentences[n].warnings ?? []) for (const [begin, end] of codeUnits(panel.sentences[n].source, spans)) ranges.push([range[0] + begin, range[0] + end, "doubtful"]);
      });
    }
  }
  container.replaceChildren(...markedText(text, ranges));
  container.scrollTop = byId("source").scrollTop;
}

/** Convert spans in code points, as the service counts, to spans in UTF-16 code units. */
export function codeUnits(text, spans) {
  if (!spans.length || !/[\ud800-\udbff]/.test(text)) return spans;
  const offsets = [0];
  for (const character of text) offsets.push(offsets.at(-1) + character.length);
  return spans.map(([begin, end]) => [offsets[begin] ?? text.length, offsets[end] ?? text.length]);
}

/** Return a text as nodes, with spans for ranges [begin, end, class], which may overlap. */
function markedText(text, ranges) {
  const cuts = [...new Set([0, text.length, ...ranges.flatMap(([begin, end]) => [begin, end])])].sort((a, b) => a - b);
  const nodes = cuts.slice(1).map((end, n) => {
    const classes = ranges.filter((range) => range[0] <= cuts[n] && end <= range[1]).map((range) => range[2]);
    return classes.length ? html("span", { class: [...new Set(classes)].join(" ") }, text.slice(cuts[n], end)) : text.slice(cuts[n], end);
  });
  return [...nodes, "\n"]; // a last empty line has a height, as in the text field
}

/** Replace the source text by another one, so that Ctrl+Z brings it back where the browser can do so. */
export function replaceSource(text) {
  const source = byId("source");
  text = text.replace(/\r\n?/g, "\n"); // as the text field does
  source.focus();
  source.select();
  const isReplaced = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
  if (isReplaced && source.value === text) return; // the browser has sent the event
  source.value = text;
  source.dispatchEvent(new Event("input"));
}

export function setUpSourceBox() {
  byId("source").addEventListener("scroll", () => { byId("source-marks").scrollTop = byId("source").scrollTop; });
  byId("source").addEventListener("input", () => {
    showCount();
    byId("source-marks").replaceChildren();
  });
  showCount();
}
