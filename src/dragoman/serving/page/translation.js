// The translation as it is written: a row for each sentence, for each run that is shown.

import { figure, make, percent } from "./dom.js";
import { direction } from "./words.js";

/** Rows are kept and changed in place: a text of many sentences is not built anew for every piece. */
export function show(place, { state, sides, choose }) {
  while (place.children.length > sides.length) place.lastChild.remove();
  sides.forEach((side, n) => {
    place.children[n] ?? place.append(make("section", { class: "result" }, make("div", { class: "who" }), make("ol"), make("p", { class: "quiet figures" })));
    showSide(place.children[n], side, sides.length > 1, state.sentence, choose);
  });
}

function showSide(section, side, named, chosen, choose) {
  const [who, list, about] = section.children;
  who.hidden = !named;
  who.textContent = side.run.name;
  section.dataset.side = side.number;
  list.lang = side.run.target;
  list.className = side.sentences.length > 1 ? "many" : "single";
  while (list.children.length > side.sentences.length) list.lastChild.remove();
  side.sentences.forEach((sentence, n) => {
    const row = list.children[n] ?? list.appendChild(newRow(n, choose));
    const [source, begun, text, likely] = row.firstChild.children;
    write(source, side.sentences.length > 1 ? sentence.source : "");
    write(begun, sentence.begun);
    write(text, sentence.text.slice(sentence.begun?.length ?? 0));
    write(likely, sentence.complete && !sentence.text.trim() ? "(nothing but space)" : sentence.likely);
    row.firstChild.dir = direction(side.run.target);
    row.firstChild.setAttribute("aria-current", String(n === chosen && side.sentences.length > 1));
  });
  write(about, summary(side.sentences[chosen], side.sentences.length > 1));
}

function write(element, text) {
  if (element.textContent !== (text ?? "")) element.textContent = text ?? "";
}

function newRow(n, choose) {
  return make("li", {}, make("button", { type: "button", click: () => choose(n) },
    make("span", { class: "source quiet", dir: "auto" }), make("span", { class: "begun" }), make("span", { class: "text" }), make("span", { class: "likely" })));
}

function summary(sentence, many) {
  if (!sentence?.complete || sentence.score === null) return "";
  const parts = [`log p ${figure(sentence.score)}`, `${percent(Math.exp(sentence.score / sentence.pieces))} a piece`];
  if (sentence.forced) parts.push("its beginning is forced");
  if (sentence.finished === false) parts.push("cut off at the length limit");
  if (sentence.truncatedSource) parts.push("only the beginning of the source was read");
  return (many ? "chosen sentence: " : "") + parts.join(" · ");
}
