// Attention: words that light up, a map of one head or of all, and all heads at a glance.

import { draw, figure, make, percent, roving, select, switches, table } from "./dom.js";
import { cells, framed, picture, room, round, short } from "./svg.js";
import { axes, direction, mean, merged } from "./words.js";

export const ofSentence = true;

const KINDS = { cross: "to the source", encoder: "within the source", decoder: "within the translation" };
const NONE = "This system has no attention: it reads the whole source into a state of fixed size and writes from that alone, so there is no look to show.";
const FAINT = 0.12; // of links that are shown while no word is held

export function show(place, context) {
  const { state, sides, change } = context;
  const kinds = Object.keys(KINDS).filter((kind) => sides.some((side) => side.seen?.attention.some((one) => one.kind === kind)));
  const kind = kinds.includes(state.kind) ? state.kind : kinds[0];
  const layers = Math.max(0, ...sides.map((side) => of(side, kind).length));
  const heads = Math.max(0, ...sides.flatMap((side) => of(side, kind).map((one) => one.weights.length)));
  const again = (patch) => {
    change(patch);
    paint();
  };
  const rebuild = (patch) => {
    change({ word: "", ...patch });
    show(place, context);
    place.querySelector(".toolbar [aria-pressed=true]")?.focus();
  };
  const choices = (count, all) => [[0, all], ...Array.from({ length: count }, (_, n) => [n + 1, n + 1])];
  const layer = select("Layer", choices(layers, "all"), state.layer, (value) => again({ layer: Number(value) }));
  const head = select("Head", choices(heads, "all"), state.head, (value) => again({ head: Number(value) }));
  const toolbar = make("div", { class: "toolbar" },
    switches("Which attention", kinds.map((one) => [one, KINDS[one]]), kind, (value) => rebuild({ kind: value, layer: 0, head: 0 })),
    layer, head,
    switches("Rows and columns", [["words", "words"], ["pieces", "pieces"]], state.unit, (unit) => again({ unit, word: "" })));
  const pick = (patch) => {
    layer.lastChild.value = patch.layer;
    head.lastChild.value = patch.head;
    again(patch);
  };
  const views = make("div", { class: "sides" });
  function paint() {
    const held = document.activeElement?.dataset?.head;
    views.replaceChildren(...sides.map((side) => one(side, kind, { ...context, pick })));
    if (held) views.querySelector(`[data-head="${held}"]`)?.focus();
  }
  place.replaceChildren(...(kinds.length ? [toolbar] : []), views);
  paint();
}

const of = (side, kind) => side.seen?.attention.filter((one) => one.kind === kind) ?? [];

function one(side, kind, context) {
  const { state, sides, change, pick } = context;
  const box = make("section", { class: "side", "data-side": side.number }, sides.length > 1 ? make("h3", {}, side.run.name) : null);
  const all = of(side, kind);
  if (!side.seen || !all.length) {
    box.append(make("p", { class: "empty" }, side.error ?? (side.seen ? (side.seen.attention.length ? `This system has no attention ${KINDS[kind]}.` : NONE) : "Looking …")));
    return box;
  }
  const chosen = chooseLooks(all, state);
  const [rows, columns] = axes(side.seen, chosen.looks, state.unit);
  const weights = merged(chosen.weights, rows, columns);
  const name = `attention-${side.run.name}`;
  const links = stage(side, kind, rows, columns, weights, { word: state.word, held: (word) => change({ word }) });
  const map = heat(rows, columns, weights, chosen.title, sides.length > 1 ? 420 : 620, links.light);
  links.onLight(map.mark);
  const data = () => ({ ...chosen.about, rows: rows.map((row) => row.label), columns: columns.map((column) => column.label), weights });
  const numbers = table(["", ...columns.map((column) => column.label)], () => rows.map((row, i) => [row.label, ...weights[i].map(percent)]));
  box.append(links.element, make("div", { class: "pair" },
    framed(chosen.title, "A row is a word that was written; what it looked at adds up to 100 %.".replace("was written", kind === "encoder" ? "was read" : "was written"), map.svg, name, data, [numbers]),
    multiples(all, state, pick, `${name}-heads`)));
  return box;
}

/** The weights of one head, or their mean over those that are not told apart. */
function chooseLooks(all, { layer, head }) {
  const some = all[layer - 1] ? [all[layer - 1]] : all.filter((one) => one.weights[0][0].length === all.at(-1).weights[0][0].length);
  const heads = some.map((one) => (one.weights[head - 1] ? [one.weights[head - 1]] : one.weights)).flat();
  const named = [all[layer - 1] ? `layer ${layer}` : all.length > 1 ? "all layers" : "", some[0].weights[head - 1] ? `head ${head}` : heads.length > 1 ? "all heads" : ""].filter(Boolean);
  const title = named.length ? `Attention: ${named.join(", ")}` : "Attention";
  return { looks: some.at(-1), weights: heads.length > 1 ? mean(heads) : heads[0], title, about: { kind: some[0].kind, layer: layer || "all", head: head || "all" } };
}

// ---- words that light up

/** The two sides as lines of words: whoever points at one sees where it looked, or who looked at it. */
function stage(side, kind, rows, columns, weights, { word, held }) {
  const language = { cross: [side.run.target, side.run.source], encoder: [side.run.source, side.run.source], decoder: [side.run.target, side.run.target] }[kind];
  const names = { cross: ["translation", "source"], encoder: ["reads", "looks at"], decoder: ["writes", "looks at"] }[kind];
  const line = (units, mark, n) => make("div", { class: "line", role: "group", "aria-label": names[n], lang: language[n], dir: direction(language[n]) },
    units.map((unit, place) => make("button", { type: "button", class: unit.end ? "word end" : "word", dir: unit.end ? "ltr" : null, "data-word": `${mark}${place}` }, unit.label)));
  const [queries, keys] = [line(rows, "q", 0), line(columns, "k", 1)];
  const wires = draw("svg", { class: "wires", "aria-hidden": "true" });
  const told = make("p", { class: "told quiet", "aria-live": "polite" });
  const element = make("div", { class: "stage" },
    make("span", { class: "name" }, names[1]), keys, wires, make("span", { class: "name" }, names[0]), queries, told);
  const word_of = (mark) => element.querySelector(`[data-word="${mark}"]`);
  let pinned = word;
  let follow = () => {};

  function light(mark) {
    const found = mark && word_of(mark);
    const [by, at] = found ? [mark[0], Number(mark.slice(1))] : ["", -1];
    element.dataset.lit = by;
    weights.forEach((row, i) => word_of(`q${i}`).style.setProperty("--weight", by === "k" ? row[at] : 0));
    columns.forEach((_, j) => word_of(`k${j}`).style.setProperty("--weight", by === "q" ? weights[at][j] : 0));
    for (const one of element.querySelectorAll(".word")) {
      one.classList.toggle("lit", one === found);
      one.setAttribute("aria-pressed", String(one.dataset.word === pinned));
    }
    told.textContent = found ? say(by, at) : "Point at a word, or go through them with the arrow keys, to see what it looked at; click to hold it.";
    wire(wires, weights, by, at, word_of);
    follow(by, at);
  }

  function say(by, at) {
    const shares = by === "q" ? weights[at].map((share, j) => [columns[j].label, share]) : weights.map((row, i) => [rows[i].label, row[at]]);
    const best = shares.sort((a, b) => b[1] - a[1]).slice(0, 4).filter(([, share]) => share >= 0.01);
    const list = best.map(([label, share]) => `${label} ${percent(share)}`).join(", ");
    return by === "q" ? `“${rows[at].label}” looked at ${list}` : list ? `“${columns[at].label}” was looked at by ${list}` : `“${columns[at].label}” was hardly looked at`;
  }

  const aimed = (event) => event.target.closest?.("[data-word]")?.dataset.word;
  element.addEventListener("pointerover", (event) => aimed(event) && light(aimed(event)));
  element.addEventListener("pointerleave", () => light(pinned));
  element.addEventListener("focusin", (event) => aimed(event) && light(aimed(event)));
  element.addEventListener("focusout", () => light(pinned));
  element.addEventListener("click", (event) => {
    if (!aimed(event)) return;
    pinned = pinned === aimed(event) ? "" : aimed(event);
    held(pinned);
    light(aimed(event));
  });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pinned = "";
    held(pinned);
    light("");
  });
  roving(queries, ".word");
  roving(keys, ".word");
  new ResizeObserver(() => element.isConnected && light(pinned)).observe(element);
  return { element, light: (mark) => light(mark ?? pinned), onLight: (work) => { follow = work; } };
}

/** Lines between the words, as strong as the looks: of one word, or faintly of all. */
function wire(svg, weights, by, at, word_of) {
  const box = svg.getBoundingClientRect();
  if (!box.width) return;
  svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  const middle = (mark) => {
    const word = word_of(mark).getBoundingClientRect();
    return [word.left + word.width / 2 - box.left, word.top - box.top, word.bottom - box.top];
  };
  // lines that are folded would have wires through their words: only those of one word are drawn then
  const folded = (mark, count) => middle(`${mark}${count - 1}`)[1] > middle(`${mark}0`)[2];
  if (!by && (folded("q", weights.length) || folded("k", weights[0].length))) {
    svg.replaceChildren();
    return;
  }
  const strong = weights.flatMap((row, i) => row.map((share, j) => [share, i, j]))
    .filter(([share, i, j]) => share >= (by ? 0.02 : FAINT) && (!by || (by === "q" ? i : j) === at));
  const ends = { q: weights.map((_, i) => middle(`q${i}`)), k: weights[0].map((_, j) => middle(`k${j}`)) };
  svg.replaceChildren(...strong.map(([share, i, j]) => {
    const [[x1, , y1], [x2, y2]] = [ends.k[j], ends.q[i]];
    const half = (y1 + y2) / 2;
    return draw("path", { d: `M${round(x1)} ${round(y1)}C${round(x1)} ${round(half)} ${round(x2)} ${round(half)} ${round(x2)} ${round(y2)}`, "stroke-opacity": round((by ? 0.9 : 0.5) * Math.sqrt(share)), "stroke-width": round(1 + 4 * share) });
  }));
}

// ---- the map

/** Rows by columns, the stronger the more; arrow keys go from cell to cell. */
function heat(rows, columns, weights, title, wide, light) {
  const size = Math.max(16, Math.min(40, wide / columns.length));
  const labels = [rows, columns].map((units) => units.map((unit) => short(unit.label, 16)));
  const left = room(labels[0], 16) + 14;
  const top = 0.8 * room(labels[1], 16) + 18;
  const whole = left + size * columns.length + 0.6 * room(labels[1].slice(-1), 16) + 12;
  const svg = picture(whole, top + size * rows.length + 8, title, `${rows.length} rows by ${columns.length} columns; the arrow keys go from cell to cell`);
  labels[0].forEach((label, i) => svg.append(draw("text", { x: round(left - 8), y: round(top + size * (i + 0.5) + 4.5), "text-anchor": "end", "data-row": i }, label)));
  labels[1].forEach((label, j) => {
    const x = round(left + size * (j + 0.5) + 4);
    svg.append(draw("text", { x, y: round(top - 8), transform: `rotate(-52 ${x} ${round(top - 8)})`, "data-column": j }, label));
  });
  weights.forEach((row, i) => row.forEach((share, j) => {
    svg.append(draw("rect", { x: round(left + size * j), y: round(top + size * i), width: round(size), height: round(size), class: "heat cell", "fill-opacity": round(share), "data-cell": `${i},${j}` }));
    if (size >= 26 && share >= 0.015) {
      svg.append(draw("text", { x: round(left + size * (j + 0.5)), y: round(top + size * (i + 0.5) + 4), "text-anchor": "middle", class: share > 0.55 ? "number strong" : "number" }, String(Math.round(100 * share))));
    }
  }));
  const frame = draw("rect", { x: round(left), y: round(top), width: round(size * columns.length), height: round(size * rows.length), class: "frame" });
  const across = draw("rect", { class: "cursor", x: round(left), width: round(size * columns.length), height: round(size), visibility: "hidden" });
  const down = draw("rect", { class: "cursor", y: round(top), width: round(size), height: round(size * rows.length), visibility: "hidden" });
  svg.append(frame, across, down);
  svg.setAttribute("tabindex", "0");
  let at = [-1, 0];
  const mark = (by, place) => {
    across.setAttribute("visibility", by === "q" ? "visible" : "hidden");
    down.setAttribute("visibility", by === "k" ? "visible" : "hidden");
    if (by === "q") across.setAttribute("y", round(top + size * place));
    if (by === "k") down.setAttribute("x", round(left + size * place));
  };
  svg.addEventListener("pointermove", (event) => {
    const { cell, row, column } = event.target.dataset;
    if (cell) light(`q${cell.split(",")[0]}`);
    else if (row) light(`q${row}`);
    else if (column) light(`k${column}`);
  });
  svg.addEventListener("pointerleave", () => light());
  svg.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    at = [Math.max(0, Math.min(rows.length - 1, at[0] + step[0])), Math.max(0, Math.min(columns.length - 1, at[1] + step[1]))];
    light(step[0] || at[0] < 0 ? `q${at[0]}` : `k${at[1]}`);
  });
  svg.addEventListener("blur", () => light());
  return { svg, mark };
}

// ---- all heads at a glance

function multiples(all, state, pick, name) {
  const side = 76;
  const heads = Math.max(...all.map((one) => one.weights.length));
  const grid = make("div", { class: "multiples" });
  const sheet = picture(heads * (side + 16) + 70, all.length * (side + 34) + 8, "All heads", `${all.length} layers of up to ${heads} heads`);
  all.forEach((looks, l) => {
    const row = make("div", { class: "heads", role: "group", "aria-label": `Layer ${l + 1}` }, make("span", { class: "name" }, `layer ${l + 1}`));
    sheet.append(draw("text", { x: 4, y: l * (side + 34) + side / 2 + 6 }, `layer ${l + 1}`));
    looks.weights.forEach((weights, h) => {
      const chosen = state.layer === l + 1 && state.head === h + 1;
      const bits = `${figure(looks.entropy[h], 1)} bits`;
      const small = thumb(weights, side);
      small.setAttribute("aria-hidden", "true");
      row.append(make("button", { type: "button", class: "thumb", "aria-pressed": String(chosen), "data-head": `${looks.kind}.${l}.${h}`, "aria-label": `Layer ${l + 1}, head ${h + 1}: ${bits} of entropy`,
        click: () => pick(chosen ? { layer: 0, head: 0 } : { layer: l + 1, head: h + 1 }) },
        small, make("span", { class: "figures" }, make("b", {}, String(h + 1)), ` ${bits}`)));
      sheet.append(draw("g", { transform: `translate(${70 + h * (side + 16)} ${l * (side + 34) + 6})` }, [...small.children].map((child) => child.cloneNode(true)),
        draw("text", { y: side + 15, class: "number" }, `${h + 1}: ${bits}`)));
    });
    grid.append(row);
  });
  roving(grid, ".thumb", () => heads);
  const figureOf = framed("All heads at a glance", "Pick one. Bits say over how much a head spreads its looks: 0 is one piece alone, 3 as if over eight.", sheet, name, () => all.map(({ kind, layer, entropy, queries, keys, weights }) => ({ kind, layer, entropy, queries, keys, weights })));
  figureOf.querySelector(".scroll").replaceChildren(grid);
  return figureOf;
}

function thumb(weights, side) {
  const svg = picture(side, side, "");
  const size = [side / weights[0].length, side / weights.length];
  svg.append(...cells(weights, size, () => "heat", 8), draw("rect", { class: "frame", width: side, height: side }));
  return svg;
}
