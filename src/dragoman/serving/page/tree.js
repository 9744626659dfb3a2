// The beam as a tree, step by step: every hypothesis that was kept, pruned or finished.

import { chance, draw, figure, make } from "./dom.js";
import { framed, picture, room, round, short } from "./svg.js";
import { joined, plain } from "./words.js";

export const ofSentence = true;

const TALL = 36;
const DOWN = 44;
const BETWEEN = 34;
const TOP = 30;
const FATES = { kept: "kept: it goes on", finished: "finished: it wrote the end", pruned: "pruned: others were better", truncated: "cut off by the length limit" };
const TICK = 900; // milliseconds of a step that is played

let playing = null;

export function show(place, context) {
  stop();
  const { state, sides, change } = context;
  const trees = sides.map((side) => side.seen?.beam);
  const last = Math.max(0, ...trees.filter(Boolean).map((tree) => tree.nodes.at(-1).step));
  const views = sides.map((side, n) => (trees[n] ? new Tree(side, trees[n]) : null));
  const slider = make("input", { type: "range", min: 1, max: last, step: 1, "aria-label": "Step of the beam", input: () => go(Number(slider.value)) });
  const told = make("output", { class: "figures" });
  const button = (label, sign, click) => make("button", { type: "button", "aria-label": label, click }, sign);
  const play = button("Play", "▶", () => (playing ? stop() : start()));
  const back = button("Step back", "◀", () => go(step() - 1));
  const forth = button("Step forward", "▶|", () => go(step() + 1));
  const toolbar = make("div", { class: "toolbar" },
    make("div", { class: "group", role: "group", "aria-label": "Steps" }, button("First step", "|◀", () => go(1)), back, play, forth, button("Last step", "▶▶", () => go(last))),
    slider, told, legend());
  const step = () => Math.min(state.step || last, last);

  function go(to, scroll = true) {
    const now = Math.max(1, Math.min(last, to));
    change({ step: now === last ? 0 : now });
    slider.value = now;
    told.textContent = `step ${now} of ${last}`;
    back.setAttribute("aria-disabled", String(now === 1)); // the focus would be lost if they were disabled
    forth.setAttribute("aria-disabled", String(now === last));
    for (const view of views) view?.go(now, scroll);
  }
  function start() {
    if (step() === last) go(1);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
    playing = { timer: setInterval(() => (place.contains(toolbar) && step() < last ? go(step() + 1) : stop()), TICK), ended: () => {
      play.textContent = "▶";
      play.setAttribute("aria-label", "Play");
    } };
  }

  place.replaceChildren(...(last ? [toolbar] : []), make("div", { class: "sides" }, sides.map((side, n) => {
    const box = make("section", { class: "side", "data-side": side.number }, sides.length > 1 ? make("h3", {}, side.run.name) : null);
    box.append(views[n] ? views[n].element : make("p", { class: "empty" }, side.error ?? reason(side)));
    return box;
  })));
  for (const view of views) view?.listen((by) => go(step() + by));
  if (last) go(step());
}

function stop() {
  if (!playing) return;
  clearInterval(playing.timer);
  playing.ended();
  playing = null;
}

const brief = (score) => score.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "−");

/** The end of a text, where hypotheses differ. */
const tail = (text, most = 60) => (text.length <= most ? text : `… ${text.slice(text.indexOf(" ", text.length - most) + 1 || -most)}`);

const reason = ({ seen }) => (!seen ? "Looking …" : seen.from_search ? "This search does not go step by step, so there is no tree of it." : "The whole translation was given, so that there was nothing to search for.");

const legend = () => make("ul", { class: "legend" }, Object.entries(FATES).map(([fate, text]) => make("li", { class: fate }, text)));

/** One tree: a column for each step, the best at the top. */
class Tree {
  constructor(side, { nodes }) {
    this.nodes = nodes;
    this.all = nodes.slice(1);
    this.best = new Set();
    for (let node = this.all.find((one) => one.rank === 1); node && node.index; node = nodes[node.parent]) this.best.add(node.index);
    this.now = 0;
    this.chosen = null;
    this.svg = this.drawn(side);
    this.panel = make("div", { class: "hypotheses" });
    const figureOf = framed("The beam, step by step", "Under a piece: log p of all pieces so far → after length normalisation. The way to the translation is strong.", this.svg, `beam-${side.run.name}`, () => side.seen.beam);
    this.scroll = figureOf.querySelector(".scroll");
    this.scroll.classList.add("tree");
    this.scroll.setAttribute("aria-label", "The beam: left and right step, up and down go through the hypotheses of a step");
    this.element = make("div", { class: "beam" }, figureOf, this.panel);
  }

  drawn(side) {
    this.wide = Math.max(106, room(this.all.map((node) => this.label(node)), 14) + 18);
    this.columns = new Map();
    for (const node of this.all) this.columns.set(node.step, [...(this.columns.get(node.step) ?? []), node]);
    this.place = new Map([[0, [4, TOP]]]);
    for (const [step, some] of this.columns) {
      some.sort((a, b) => b.score - a.score).forEach((node, n) => this.place.set(node.index, [this.across(step), TOP + DOWN * n]));
    }
    const tallest = Math.max(...[...this.columns.values()].map((some) => some.length));
    const words = joined([...this.best].reverse().map((number) => this.nodes[number].token));
    const svg = picture(this.across(this.columns.size + 1), TOP + DOWN * tallest + 4, "The beam, step by step", `${this.all.length} hypotheses in ${this.columns.size} steps; the best: ${words}`);
    this.steps = [...this.columns.keys()].map((step) => draw("text", { x: this.across(step), y: 18, class: "faint", "data-step": step }, String(step)));
    const order = [...this.all].sort((a, b) => this.best.has(a.index) - this.best.has(b.index));
    this.edges = order.map((node) => this.edge(node));
    this.boxes = this.all.map((node) => this.box(node));
    svg.append(...this.steps, draw("g", {}, this.edges), draw("circle", { cx: 14, cy: TOP + TALL / 2, r: 5, class: "root" }), draw("g", {}, this.boxes));
    svg.setAttribute("lang", side.run.target);
    return svg;
  }

  across(step) {
    return 44 + (step - 1) * (this.wide + BETWEEN);
  }

  label(node) {
    return (node.rank ? `${node.rank}. ` : "") + plain(node.token);
  }

  edge(node) {
    const [x, y] = this.place.get(node.parent);
    const [to, down] = this.place.get(node.index);
    const from = node.parent ? x + this.wide : 20;
    const [middle, top, bottom] = [(from + to) / 2, y + TALL / 2, down + TALL / 2];
    return draw("path", { d: `M${round(from)} ${top}C${round(middle)} ${top} ${round(middle)} ${bottom} ${round(to)} ${bottom}`, class: this.best.has(node.index) ? "edge way" : "edge", "data-step": node.step, "data-edge": node.index });
  }

  box(node) {
    const [x, y] = this.place.get(node.index);
    const size = { x: round(x), y, width: round(this.wide), height: TALL, rx: 6 };
    const own = this.best.has(node.index);
    return draw("g", { class: `node ${node.status}${own ? " best" : ""}`, "data-step": node.step, "data-node": node.index },
      draw("title", {}, this.say(node)),
      draw("rect", { ...size, class: "ground" }), draw("rect", { ...size, class: "shape" }),
      draw("text", { x: round(x + 9), y: y + 15, class: own ? "bold" : null }, short(this.label(node), 14)),
      draw("text", { x: round(x + 9), y: y + 29, class: "number" }, `${brief(node.score)} → ${brief(node.normalized_score)}`));
  }

  path(node) {
    const found = [];
    for (let one = node; one.index; one = this.nodes[one.parent]) found.unshift(one);
    return found;
  }

  text(node) {
    return this.path(node).map((one) => one.token).join("").replace(/▁/g, " ").trim();
  }

  say(node) {
    return `${this.text(node)}: ${FATES[node.status]}; log p ${figure(node.score)}, normalised ${figure(node.normalized_score)}, p of this piece ${chance(Math.exp(node.log_probability))}`;
  }

  /** All up to a step; what comes later is not known yet. */
  go(step, scroll) {
    this.now = Math.min(step, this.columns.size);
    for (const one of [...this.steps, ...this.edges, ...this.boxes]) {
      const own = Number(one.dataset.step);
      one.classList.toggle("later", own > step);
      one.classList.toggle("now", own === step);
    }
    const some = this.columns.get(this.now);
    this.choose(some.find((node) => this.best.has(node.index)) ?? some[0]);
    const wide = this.scroll.clientWidth;
    const scale = this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width || 1;
    if (scroll && wide) this.scroll.scrollLeft = (this.across(this.now) + this.wide + 20) * scale - wide;
  }

  choose(node) {
    this.chosen = node;
    const way = new Set(this.path(node).map((one) => String(one.index)));
    for (const edge of this.edges) edge.classList.toggle("aimed", way.has(edge.dataset.edge));
    for (const box of this.boxes) box.classList.toggle("aimed", box.dataset.node === String(node.index));
    this.tell();
  }

  /** The hypotheses of a step beside the tree. */
  tell() {
    const { step } = this.chosen;
    const some = this.columns.get(step);
    const row = (node) => make("tr", { class: `${node.status}${node === this.chosen ? " aimed" : ""}`, click: () => this.choose(node) },
      make("td", { class: "mark" }, make("span", { class: "dot" }), make("span", { class: "unseen" }, node.status)),
      make("th", { scope: "row", dir: "auto" }, tail(this.text(node))),
      make("td", {}, brief(node.score)), make("td", {}, brief(node.normalized_score)));
    const head = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "unseen" }, "fate")), make("th", { scope: "col" }, `step ${step}`), make("th", { scope: "col" }, "log p"), make("th", { scope: "col" }, "normalised"));
    const rank = this.chosen.rank ? `, number ${this.chosen.rank} of what was given back` : "";
    this.panel.replaceChildren(
      make("p", {}, make("b", { dir: "auto" }, this.text(this.chosen)), make("br"), make("span", { class: "quiet figures" },
        `${FATES[this.chosen.status]}${rank}; log p ${figure(this.chosen.score)}, after normalisation ${figure(this.chosen.normalized_score)}; p of its last piece ${chance(Math.exp(this.chosen.log_probability))}`)),
      make("div", { class: "scroll" }, make("table", { class: "figures" }, make("thead", {}, head), make("tbody", {}, some.map(row)))));
  }

  listen(step) {
    this.svg.addEventListener("pointerover", (event) => {
      const number = event.target.closest(".node")?.dataset.node;
      if (number && this.nodes[number] !== this.chosen) this.choose(this.nodes[number]);
    });
    this.scroll.addEventListener("keydown", (event) => {
      const across = { ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6 }[event.key];
      const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!across && !down) return;
      event.preventDefault();
      if (across) step(across);
      else {
        const some = this.columns.get(this.now);
        this.choose(some[Math.max(0, Math.min(some.length - 1, some.indexOf(this.chosen) + down))]);
      }
    });
  }
}
