// The beam search as a tree, step by step: hypotheses that were kept, pruned, finished or truncated.

import { formatNumber, formatProbability, html, missingMessage, rovingFocus, runSection, svg } from "./dom.js";
import { figureSvg, framedFigure, labelWidth, round, shorten, swatchLegend } from "./figures.js";
import { displayToken, joinTokens } from "./tokens.js";

export const needsSentence = true;

const NODE_HEIGHT = 36; // pixels
const ROW_STEP = 44;
const COLUMN_GAP = 34;
const TOP = 30;
const STATUS_LABELS = { kept: "kept: continued", finished: "finished: ends in EOS", pruned: "pruned: others were better", truncated: "truncated at the length limit" };
const PLAY_INTERVAL = 900; // milliseconds per step

let playback = null; // {timer, onStop}

export function show(container, { state, panels, change }) {
  stopPlayback();
  const views = panels.map((panel) => (panel.inspection?.beam ? new BeamView(panel) : null));
  const last = Math.max(0, ...views.map((view) => view?.columns.size ?? 0));
  const currentStep = () => Math.max(1, Math.min(state.step, last));
  const button = (label, sign, click) => html("button", { type: "button", "aria-label": label, title: label, click }, sign);
  const slider = html("input", { type: "range", min: 1, max: last, step: 1, "aria-label": "Step of the beam search", title: "Step of the beam search", input: () => goTo(Number(slider.value)) });
  const status = html("output", { class: "figures" });
  const play = html("button", { type: "button", class: "play", title: "Play all steps", click: () => togglePlayback() }, "Play");
  const back = button("Step back", "◀", () => goTo(currentStep() - 1));
  const forward = button("Step forward", "▶", () => goTo(currentStep() + 1));
  const legend = html("ul", { class: "legend" }, html("li", { class: "best" }, "path to the translation"), Object.entries(STATUS_LABELS).map(([name, text]) => html("li", { class: name }, text)));
  const toolbar = html("div", { class: "toolbar" },
    html("div", { class: "group", role: "group", "aria-label": "Steps" }, button("First step", "|◀", () => goTo(1)), back, forward, button("Last step", "▶|", () => goTo(last))),
    play, slider, status, legend);

  function goTo(target) {
    const step = Math.max(1, Math.min(last, target));
    change({ step: step === 1 ? 0 : step });
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
    status.textContent = `step ${step} of ${last}`;
    back.setAttribute("aria-disabled", String(step === 1)); // disabled buttons would lose the focus
    forward.setAttribute("aria-disabled", String(step === last));
    for (const view of views) view?.goTo(step);
  }
  function togglePlayback() {
    if (playback) {
      stopPlayback();
      return;
    }
    if (currentStep() === last) goTo(1);
    const showButton = (text) => {
      play.textContent = text;
      play.title = text === "Play" ? "Play all steps" : "Stop at this step";
    };
    showButton("Pause");
    const advance = () => (container.contains(toolbar) && currentStep() < last ? goTo(currentStep() + 1) : stopPlayback());
    playback = { timer: setInterval(advance, PLAY_INTERVAL), onStop: () => showButton("Play") };
  }

  const content = (panel, n) => views[n]?.element ?? missingMessage(panel, missingReason(panel.inspection));
  container.replaceChildren(...(last ? [toolbar] : []), html("div", { class: "panels" }, panels.map((panel, n) => runSection(panel, panels, content(panel, n)))));
  for (const view of views) view?.listen({ goTo: (step) => goTo(step), moveBy: (by) => goTo(currentStep() + by), togglePlayback });
  if (last) goTo(currentStep());
}

function stopPlayback() {
  if (!playback) return;
  clearInterval(playback.timer);
  playback.onStop();
  playback = null;
}

function missingReason(inspection) {
  if (!inspection) return "Loading …";
  return inspection.from_search ? "This search does not decode step by step, so it has no tree." : "The translation was given, so there was no search.";
}

const beamLegend = () => swatchLegend([["path to the translation", "kept best"], ["kept", "kept"], ["finished", "finished"], ["pruned", "pruned"], ["truncated", "truncated"]]
  .map(([text, name]) => ({ text, shape: (x, y) => svg("g", { class: name }, svg("rect", { x, y, width: 16, height: 12, rx: 3, class: "shape" })) })));

const formatScore = (score) => score.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "−");

const joinPieces = (tokens) => tokens.join("").replace(/▁/g, " ").trim() || tokens.join("");

/** The tree of one run: a column for each step, best hypotheses on top, and a list of the hypotheses of a step. */
class BeamView {
  constructor({ run, inspection: { beam } }) {
    this.allNodes = beam.nodes;
    this.nodes = beam.nodes.slice(1); // without the root
    this.bestPath = new Set(this.path(this.nodes.find((node) => node.rank === 1)).map((node) => node.index));
    const scoresWidth = 6.6 * Math.max(...this.nodes.map((node) => this.scores(node).length)); // of small digits
    this.nodeWidth = Math.max(labelWidth(this.nodes.map((node) => this.label(node)), 14), scoresWidth) + 18;
    this.columns = new Map(); // step → nodes, best first
    for (const node of [...this.nodes].sort((a, b) => b.score - a.score)) this.columns.set(node.step, [...(this.columns.get(node.step) ?? []), node]);
    this.columns = new Map([...this.columns].sort(([a], [b]) => a - b));
    this.positions = new Map([[0, [20 - this.nodeWidth, TOP]]]);
    for (const [step, column] of this.columns) column.forEach((node, n) => this.positions.set(node.index, [this.columnX(step), TOP + ROW_STEP * n]));
    this.figure = this.draw(run.target);
    this.list = html("div", { class: "hypotheses" });
    const framed = framedFigure("Beam search, step by step", "Below a token: log p of the hypothesis → after length normalization. The path to the translation is bold, also in later steps.", this.figure, `beam-${run.name}`, () => beam, [], beamLegend());
    framed.querySelector(".figure-legend").classList.add("visually-hidden"); // the toolbar has it
    this.scrollArea = framed.querySelector(".scroll");
    this.scrollArea.classList.add("tree");
    this.scrollArea.setAttribute("aria-label", "Beam search: left and right change the step, up and down select a hypothesis, space plays");
    this.element = html("div", { class: "beam" }, framed, this.list);
  }

  draw(language) {
    const tallest = Math.max(...[...this.columns.values()].map((column) => column.length));
    const best = joinTokens(this.nodes.filter((node) => this.bestPath.has(node.index)).map((node) => node.token));
    const figure = figureSvg(this.columnX(this.columns.size + 1), TOP + ROW_STEP * tallest + 4, "Beam search, step by step", `${this.nodes.length} hypotheses in ${this.columns.size} steps; the best: ${best}`);
    const edgeOrder = [...this.nodes].sort((a, b) => this.bestPath.has(a.index) - this.bestPath.has(b.index)); // the best path on top
    this.stepLabels = [...this.columns.keys()].map((step) => svg("text", { x: this.columnX(step), y: 18, class: "faint", "data-step": step }, String(step)));
    this.edges = edgeOrder.map((node) => this.drawEdge(node));
    this.boxes = this.nodes.map((node) => this.drawNode(node));
    figure.append(...this.stepLabels, svg("g", {}, this.edges), svg("circle", { cx: 14, cy: TOP + NODE_HEIGHT / 2, r: 5, class: "root" }), svg("g", {}, this.boxes));
    figure.setAttribute("lang", language);
    return figure;
  }

  columnX(step) {
    return 44 + (step - 1) * (this.nodeWidth + COLUMN_GAP);
  }

  label(node) {
    return (node.rank ? `${node.rank}. ` : "") + displayToken(node.token);
  }

  drawEdge(node) {
    const [parentX, parentY] = this.positions.get(node.parent);
    const [x, y] = this.positions.get(node.index);
    const [from, top, bottom] = [parentX + this.nodeWidth, parentY + NODE_HEIGHT / 2, y + NODE_HEIGHT / 2];
    const middle = round((from + x) / 2);
    return svg("path", { d: `M${round(from)} ${top}C${middle} ${top} ${middle} ${bottom} ${round(x)} ${bottom}`, class: this.bestPath.has(node.index) ? "edge best-path" : "edge", "data-step": node.step, "data-edge": node.index });
  }

  drawNode(node) {
    const [x, y] = this.positions.get(node.index);
    const box = { x: round(x), y, width: round(this.nodeWidth), height: NODE_HEIGHT, rx: 6 };
    const isBest = this.bestPath.has(node.index);
    return svg("g", { class: `node ${node.status}${isBest ? " best" : ""}`, "data-step": node.step, "data-node": node.index },
      svg("title", {}, `${this.text(node)}: ${this.describe(node)}`),
      svg("rect", { ...box, class: "ground" }), svg("rect", { ...box, class: "shape" }),
      svg("text", { x: round(x + 9), y: y + 15, class: isBest ? "bold" : null }, shorten(this.label(node), 14)),
      svg("text", { x: round(x + 9), y: y + 29, class: "number" }, this.scores(node)));
  }

  /** Return what a node shows below its token: log p of the hypothesis, and its normalized score. */
  scores(node) {
    return `${formatScore(node.score)} → ${formatScore(node.normalized_score)}`;
  }

  /** Return the nodes from the first token to `node`. */
  path(node) {
    const path = [];
    for (let current = node; current.index; current = this.allNodes[current.parent]) path.unshift(current);
    return path;
  }

  text(node) {
    return joinPieces(this.path(node).map((current) => current.token));
  }

  describe(node) {
    const rank = node.rank ? `, rank ${node.rank}` : "";
    return `${STATUS_LABELS[node.status]}${rank}; log p ${formatNumber(node.score)}, normalized ${formatNumber(node.normalized_score)}; p of the last token ${formatProbability(Math.exp(node.log_probability))}`;
  }

  /** Show the search up to a step; the path to the translation is shown in later steps as well. */
  goTo(step) {
    this.step = Math.min(step, this.columns.size);
    for (const element of [...this.stepLabels, ...this.edges, ...this.boxes]) element.classList.toggle("future", Number(element.dataset.step) > step);
    const column = this.columns.get(this.step);
    this.select(column.find((node) => this.bestPath.has(node.index)) ?? column[0]);
    this.scrollToStep();
  }

  /** Scroll the tree, but not the page, so far that the step is visible. */
  scrollToStep() {
    const scale = this.figure.getBoundingClientRect().width / this.figure.viewBox.baseVal.width || 1;
    const { clientWidth, scrollLeft } = this.scrollArea;
    const [left, right] = [(this.columnX(this.step) - 20) * scale, (this.columnX(this.step) + this.nodeWidth + 20) * scale];
    if (left < scrollLeft) this.scrollArea.scrollLeft = this.step === 1 ? 0 : left;
    else if (clientWidth && right > scrollLeft + clientWidth) this.scrollArea.scrollLeft = right - clientWidth;
  }

  /** Select a hypothesis of the present step. */
  select(node) {
    this.selected = node;
    const path = new Set(this.path(node).map((current) => String(current.index)));
    for (const edge of this.edges) edge.classList.toggle("selected", path.has(edge.dataset.edge));
    for (const box of this.boxes) box.classList.toggle("selected", box.dataset.node === String(node.index));
    this.showList();
  }

  /** Return the hypotheses of the present step as a tree: what several have in common is one branch, above what differs. */
  branches() {
    const children = new Map(); // node → those of its children that lead to the present step
    const add = (node) => {
      const siblings = children.get(node.parent) ?? [];
      if (siblings.includes(node)) return;
      children.set(node.parent, [...siblings, node]);
      if (node.parent) add(this.allNodes[node.parent]);
    };
    for (const node of this.columns.get(this.step)) add(node); // best first
    const rows = [];
    const visit = (node, depth, before) => {
      const [tokens, next] = [[...before, node.token], children.get(node.index) ?? []];
      if (next.length === 1) visit(next[0], depth, tokens);
      else {
        rows.push({ depth, text: joinPieces(tokens), leaf: next.length ? null : node });
        for (const child of next) visit(child, depth + 1, []);
      }
    };
    for (const node of children.get(0) ?? []) visit(node, 0, []);
    return rows;
  }

  /** List the hypotheses of the present step. */
  showList() {
    const isFocused = this.list.contains(document.activeElement);
    const indented = (text, depth) => {
      const cell = html("th", { scope: "row", dir: "auto" }, depth ? html("span", { class: "branch", "aria-hidden": "true" }, "└ ") : null, text);
      cell.style.setProperty("--depth", depth);
      return cell;
    };
    const row = ({ depth, text, leaf }) => {
      if (!leaf) return html("tr", { class: "common" }, html("td"), indented(text, depth), html("td"), html("td"));
      const isBest = this.bestPath.has(leaf.index);
      return html("tr", { class: `${leaf.status}${leaf === this.selected ? " selected" : ""}${isBest ? " best" : ""}`, "data-listed": leaf.index, tabindex: leaf === this.selected ? 0 : -1, title: `${this.text(leaf)}: ${this.describe(leaf)}`, click: () => this.select(leaf), focus: () => leaf !== this.selected && this.select(leaf) },
        html("td", { class: "mark" }, html("span", { class: "dot" }), html("span", { class: "visually-hidden" }, `${leaf.status}${isBest ? ", on the path to the translation" : ""}`)),
        indented(text, depth), html("td", {}, formatScore(leaf.score)), html("td", {}, formatScore(leaf.normalized_score)));
    };
    const headings = [html("span", { class: "visually-hidden" }, "status"), `hypotheses of step ${this.step}`, "log p", "normalized"];
    const head = html("tr", {}, headings.map((heading) => html("th", { scope: "col" }, heading)));
    const body = html("tbody", {}, this.branches().map(row));
    this.list.replaceChildren(
      html("p", {}, html("b", { dir: "auto" }, this.text(this.selected)), html("br"), html("span", { class: "muted figures" }, this.describe(this.selected))),
      html("div", { class: "scroll" }, html("table", { class: "figures" }, html("thead", {}, head), body)));
    rovingFocus(body, "tr[data-listed]");
    for (const listed of body.querySelectorAll("tr[data-listed]")) listed.tabIndex = listed.matches(".selected") ? 0 : -1;
    if (isFocused) body.querySelector(".selected")?.focus();
  }

  /** Select hypotheses with pointer and keyboard; a hypothesis of another step changes the step. */
  listen({ goTo, moveBy, togglePlayback }) {
    this.figure.addEventListener("click", (event) => {
      const index = event.target.closest(".node")?.dataset.node;
      if (!index) return;
      const node = this.allNodes[index];
      if (node.step !== this.step) goTo(node.step);
      this.select(node);
    });
    this.scrollArea.addEventListener("keydown", (event) => {
      const stepChange = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      const rowChange = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!stepChange && !rowChange && event.key !== " ") return;
      event.preventDefault();
      if (stepChange) moveBy(stepChange);
      else if (rowChange) {
        const column = this.columns.get(this.step);
        this.select(column[Math.max(0, Math.min(column.length - 1, column.indexOf(this.selected) + rowChange))]);
      } else togglePlayback();
    });
  }
}
