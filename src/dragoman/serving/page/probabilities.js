// Probabilities: how sure the model was of every piece, what else it might have said, and what would have come of that.

import { chance, figure, make, roving, table } from "./dom.js";
import { grid } from "./grid.js";
import { framed } from "./svg.js";
import { begins, direction, plain } from "./words.js";

export const ofSentence = true;

let afterwards = null; // the side and the place that were forced: the focus goes back there

export function show(place, context) {
  place.replaceChildren(make("div", { class: "sides" }, context.sides.map((side) => one(side, context))));
  if (afterwards === null) return;
  const { number, at } = afterwards;
  const chips = place.querySelectorAll(`[data-side="${number}"] .chip`);
  afterwards = null;
  chips[Math.min(at, chips.length - 1)]?.focus({ preventScroll: true });
}

function one(side, { state, sides, force }) {
  const box = make("section", { class: "side", "data-side": side.number }, sides.length > 1 ? make("h3", {}, side.run.name) : null);
  const { seen } = side;
  if (!seen) {
    box.append(make("p", { class: "empty" }, side.error ?? "Looking …"));
    if (side.error && state.forced[`${side.number}.${state.sentence}`]) box.append(own(side, force));
    return box;
  }
  const take = (at, token) => {
    afterwards = { number: side.number, at };
    force(side, [...seen.steps.slice(0, at).map((step) => step.token_id), token]);
  };
  const line = make("div", { class: "chips", lang: side.run.target, dir: direction(side.run.target), role: "group", "aria-label": "Pieces of the translation" });
  seen.steps.forEach((step, at) => line.append(chip(step, at, at < side.forced, () => choices(line, side, at, take))));
  roving(line, ".chip");
  const about = make("p", { class: "quiet figures" },
    `log p ${figure(seen.score)} · perplexity ${figure(Math.exp(-seen.score / seen.steps.length))} a piece`);
  if (side.forced) {
    about.append(" · ", make("b", {}, side.forced === 1 ? "1 piece is forced" : `${side.forced} pieces are forced`), " ",
      own(side, force));
  }
  const svg = alternatives(seen);
  svg.addEventListener("click", (event) => {
    const [rank, at] = (event.target.closest("[data-place]")?.dataset.place ?? "").split(",").map(Number);
    if (at >= 0) take(at, seen.steps[at].alternatives[rank].token_id);
  });
  box.append(
    make("p", { class: "quiet" }, "Choose a piece to see what else was likely; choose another one, and the rest is translated again from there."),
    line, about,
    framed("The likeliest pieces at every place", "What was chosen is marked. Probabilities are those before any rule of a search.", svg, `alternatives-${side.run.name}`, () => seen.steps,
      [table(["place", "piece", "probability", "rank", "entropy in bits", "alternatives"], () => seen.steps.map((step, n) => [n + 1, step.token, chance(step.probability), step.rank, figure(step.entropy), step.alternatives.map((other) => `${other.token} ${chance(other.probability)}`).join(", ")]))]));
  return box;
}

/** The way back from what was forced. */
const own = (side, force) => make("button", { type: "button", click: () => {
  afterwards = { number: side.number, at: 0 };
  force(side, null);
} }, "Back to its own translation");

/** A piece with a bar as wide as it was likely; what was unlikely stands out. */
function chip(step, at, forced, click) {
  const text = make("span", { class: "piece", dir: step.token.startsWith("<") ? "ltr" : null }, plain(step.token));
  const button = make("button", {
    type: "button", class: `chip${begins(step.token) ? " begins" : ""}${forced ? " forced" : ""}`, "data-at": at, "aria-haspopup": "dialog",
    "aria-label": `${plain(step.token)}, ${chance(step.probability)}${forced ? ", forced" : ""}`, click,
  }, text, make("span", { class: "bar" }), make("span", { class: "figures" }, chance(step.probability)));
  button.style.setProperty("--share", step.probability);
  return button;
}

/** What else was likely at a place: one of them can be chosen. */
function choices(line, side, at, take) {
  document.querySelector(".choices")?.remove();
  const step = side.seen.steps[at];
  const owner = line.children[at];
  const known = step.alternatives.some((other) => other.token_id === step.token_id);
  const listed = known ? step.alternatives : [...step.alternatives, { token: step.token, token_id: step.token_id, probability: step.probability }];
  const box = make("div", { class: "choices", role: "dialog", "aria-label": `What else was likely instead of ${plain(step.token)}` });
  const close = (focus) => {
    box.remove();
    document.removeEventListener("pointerdown", outside);
    if (focus) owner.focus();
  };
  const outside = (event) => box.contains(event.target) || owner.contains(event.target) || close(false);
  box.append(...listed.map((other) => {
    const own = other.token_id === step.token_id;
    const button = make("button", { type: "button", class: "option", "aria-pressed": String(own), click: () => { close(true); if (!own) take(at, other.token_id); } },
      make("span", { class: "piece", lang: side.run.target, dir: "auto" }, plain(other.token)), make("span", { class: "bar" }), make("span", { class: "figures" }, chance(other.probability)));
    button.style.setProperty("--share", other.probability);
    return button;
  }));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "Tab") return;
    event.preventDefault();
    close(true);
  });
  roving(box, ".option");
  line.after(box);
  const [outer, chip] = [line.parentElement.getBoundingClientRect(), owner.getBoundingClientRect()];
  box.style.left = `${Math.max(0, Math.min(chip.left - outer.left, outer.width - box.offsetWidth))}px`;
  box.style.top = `${chip.bottom - outer.top + 6}px`;
  document.addEventListener("pointerdown", outside);
  (box.querySelector("[aria-pressed=true]") ?? box.firstChild).focus();
}

function alternatives({ steps }) {
  const ranks = Array.from({ length: Math.min(5, steps[0].alternatives.length) }, (_, n) => n);
  const rows = ranks.map((rank) => ({
    name: String(rank + 1),
    cells: steps.map((step) => {
      const other = step.alternatives[rank];
      return { text: plain(other.token), share: other.probability, below: chance(other.probability), chosen: other.token_id === step.token_id, told: `${other.token}: ${chance(other.probability)}` };
    }),
  }));
  return grid("The likeliest pieces at every place", steps.map((_, n) => n + 1), rows, steps.map((step) => `${plain(step.token)} ${chance(step.probability)}`).join(", "));
}
