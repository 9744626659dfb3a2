// From pieces to words: what is shown where the model looks from piece to piece.

const RIGHT_TO_LEFT = new Set(["ar", "arc", "ckb", "dv", "fa", "he", "ks", "ps", "sd", "ug", "ur", "yi"]);
// scripts that put no spaces between words: there a piece is the word that one can point at
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

export const direction = (language) => (RIGHT_TO_LEFT.has(language.split("-")[0]) ? "rtl" : "auto");

/** A piece as people read it: without the mark for a space. */
export const plain = (piece) => piece.replace(/▁/g, " ").trim() || (piece.includes("▁") ? "␣" : piece);

/** Does a piece begin a word? */
export const begins = (piece) => piece.startsWith("▁") || piece.startsWith("<");

export const joined = (pieces) => pieces.filter((piece) => !/^<\/?\w+>$/.test(piece)).join("").replace(/▁/g, " ").trim();

/** What one can point at: a label and the pieces that it stands for. */
function units(pieces, words, wordOfPiece, unit) {
  const found = [];
  let space = []; // pieces that are but a space: they belong to what follows
  pieces.forEach((piece, n) => {
    const word = wordOfPiece?.[n] ?? -1;
    if (unit === "words" && piece === "▁" && n < pieces.length - 1) {
      space.push(n);
      return;
    }
    const whole = unit === "words" && word >= 0 && !UNSPACED.test(words[word]);
    const last = found.at(-1);
    if (whole && last?.word === word) last.pieces.push(...space, n);
    else found.push({ label: whole ? words[word] : unit === "words" ? plain(piece) : piece, pieces: [...space, n], word: whole ? word : -2, end: word < 0 });
    space = [];
  });
  return found;
}

/** The rows and columns of an attention; pieces where it is not plain which words they belong to. */
export function axes(seen, looks, unit) {
  const { source, target } = seen;
  const given = target && { words: target.words, wordOfPiece: [-1, ...target.word_ids.slice(0, -1)] };
  const sides = {
    cross: [target && { words: target.words, wordOfPiece: target.word_ids }, source && { words: source.words, wordOfPiece: source.word_ids }],
    encoder: [source && { words: source.words, wordOfPiece: source.word_ids }, source && { words: source.words, wordOfPiece: source.word_ids }],
    decoder: [target && { words: target.words, wordOfPiece: target.word_ids }, given],
  }[looks.kind];
  return [looks.queries, looks.keys].map((pieces, n) => {
    const side = sides[n];
    return side?.wordOfPiece.length === pieces.length ? units(pieces, side.words, side.wordOfPiece, unit) : units(pieces, [], null, unit);
  });
}

/** Weights over pieces → over units: the sum over a column's pieces, the mean over a row's, so that rows sum to 1. */
export function merged(weights, rows, columns) {
  return rows.map((row) => columns.map((column) => {
    let sum = 0;
    for (const i of row.pieces) for (const j of column.pieces) sum += weights[i][j];
    return sum / row.pieces.length;
  }));
}

/** The mean of some matrices of one shape. */
export function mean(matrices) {
  return matrices[0].map((row, i) => row.map((_, j) => matrices.reduce((sum, one) => sum + one[i][j], 0) / matrices.length));
}
