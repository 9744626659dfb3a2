// The words in which two texts differ: a longest common subsequence of words.

import { html } from "./dom.js";

const MAX_WORDS = 400; // longer texts are not compared

/** Split a text at spaces; characters one by one in scripts without spaces. */
const wordsOf = (text) => text.match(/\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Thai}|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]+|\s+/gu) ?? [];

/** Return the words of `text` as [word, whether it is also in `other`, in the same order]. */
export function compareWords(text, other) {
  const [words, others] = [wordsOf(text), wordsOf(other).filter((word) => word.trim())];
  const own = words.map((word, n) => n).filter((n) => words[n].trim());
  if (own.length > MAX_WORDS || others.length > MAX_WORDS) return words.map((word) => [word, true]);
  const lengths = Array.from({ length: own.length + 1 }, () => new Uint16Array(others.length + 1)); // of common subsequences
  for (let i = own.length - 1; i >= 0; i--) {
    for (let j = others.length - 1; j >= 0; j--) {
      lengths[i][j] = words[own[i]] === others[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const common = new Set();
  for (let i = 0, j = 0; i < own.length && j < others.length;) {
    if (words[own[i]] === others[j]) {
      common.add(own[i]);
      i++;
      j++;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return words.map((word, n) => [word, !word.trim() || common.has(n)]);
}

/** Return a text whose words that differ from `other` are marked. */
export function markedDifference(text, other, attributes = {}) {
  const parts = compareWords(text, other).map(([word, isCommon]) => (isCommon ? word : html("mark", { class: "different" }, word)));
  return html("span", { dir: "auto", ...attributes }, ...(parts.length ? parts : [html("span", { class: "muted" }, "(empty)")]));
}
