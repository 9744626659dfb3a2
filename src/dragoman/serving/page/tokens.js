// Tokens and words: display forms, and attention between words merged from attention between tokens.

const RIGHT_TO_LEFT = new Set(["ar", "arc", "ckb", "dv", "fa", "he", "ks", "ps", "sd", "ug", "ur", "yi"]);
// scripts without spaces between words: tokens are shown instead of words
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

const RIGHT_TO_LEFT_SCRIPT = /[-_](Adlm|Arab|Hebr|Nkoo|Syrc|Thaa)\b/i;

export const direction = (language) => (RIGHT_TO_LEFT.has(language.split(/[-_]/)[0]) || RIGHT_TO_LEFT_SCRIPT.test(language) ? "rtl" : "auto");

/** Return the code of a language as the attribute `lang` needs it: eng-Latn. */
export const languageTag = (language) => language.replace(/_(XX)?/, (match, region) => (region ? "" : "-"));

/** Return a token without the marker for spaces. */
export const displayToken = (token) => token.replace(/▁/g, " ").trim() || (token.includes("▁") ? "␣" : token);

export const startsWord = (token) => token.startsWith("▁") || token.startsWith("<");

/** Group the tokens of a text into words: where each begins and ends in the text, and the indices of its tokens.
 * Text without spaces is grouped into tokens. A token that is not found in the text, such as part of a character, belongs to the
 * word before it. */
export function wordUnits(text, tokens) {
  const units = [];
  let cursor = 0;
  let waiting = []; // indices of tokens that are only a space
  tokens.forEach((token, n) => {
    const piece = token.replace(/▁/g, " ").trim();
    const begin = cursor + /^\s*/.exec(text.slice(cursor))[0].length;
    const last = units.at(-1);
    if (!piece) waiting.push(n);
    else if (!text.startsWith(piece, begin)) {
      if (last) last.tokens.push(...waiting.splice(0), n);
      else waiting.push(n);
    } else {
      const end = begin + piece.length;
      const continues = last && begin === last.end && !UNSPACED.test(piece) && !UNSPACED.test(text.slice(last.begin, last.end));
      if (continues) Object.assign(last, { end, tokens: [...last.tokens, ...waiting, n] });
      else units.push({ begin, end, tokens: [...waiting, n] });
      [cursor, waiting] = [end, []];
    }
  });
  return units;
}

/** Join tokens to text, without special tokens. */
export const joinTokens = (tokens) => tokens.filter((token) => !/^<\/?\w+>$/.test(token)).join("").replace(/▁/g, " ").trim();

/** Group tokens into units to display: words or single tokens, each with the indices of its tokens. */
function displayUnits(tokens, words, wordIds, unit) {
  const units = [];
  let spaces = []; // indices of tokens that are only a space: they belong to the next unit
  tokens.forEach((token, n) => {
    const word = wordIds?.[n] ?? -1;
    if (unit === "words" && token === "▁" && n < tokens.length - 1) {
      spaces.push(n);
      return;
    }
    const isWord = unit === "words" && word >= 0 && !UNSPACED.test(words[word]);
    const last = units.at(-1);
    if (isWord && last?.word === word) last.tokens.push(...spaces, n);
    else units.push({ label: isWord ? words[word] : unit === "words" ? displayToken(token) : token, tokens: [...spaces, n], word: isWord ? word : -2, isSpecial: word < 0 });
    spaces = [];
  });
  return units;
}

/** Return the row and column units of an attention map; single tokens if their words are unknown. */
export function attentionAxes({ source, target }, attention, unit) {
  const decoderInputs = target && { words: target.words, word_ids: [-1, ...target.word_ids.slice(0, -1)] };
  const texts = { cross: [target, source], encoder: [source, source], decoder: [target, decoderInputs] }[attention.kind];
  return [attention.queries, attention.keys].map((tokens, n) => {
    const text = texts[n];
    return text?.word_ids.length === tokens.length ? displayUnits(tokens, text.words, text.word_ids, unit) : displayUnits(tokens, [], null, unit);
  });
}

/** Merge weights between tokens to units: sum over the tokens of a column, mean over those of a row. Rows sum to 1. */
export const mergeWeights = (weights, rows, columns) => rows.map((row) => columns.map((column) => {
  let sum = 0;
  for (const i of row.tokens) for (const j of column.tokens) sum += weights[i][j];
  return sum / row.tokens.length;
}));

/** Return the mean of matrices of equal shape. */
export const meanMatrix = (matrices) =>
  matrices[0].map((row, i) => row.map((_, j) => matrices.reduce((sum, matrix) => sum + matrix[i][j], 0) / matrices.length));
