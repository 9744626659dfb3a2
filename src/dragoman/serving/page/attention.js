// Attention: linked words with one or several heads in colors, a heatmap, and all layers and heads as small maps.

import { dataTable, formatNumber, formatPercent, html, missingMessage, rovingFocus, runSection, select, svg, toggleGroup } from "./dom.js";
import { colorScale, figureSvg, framedFigure, labelWidth, matrixPaths, round, shorten, textClass } from "./figures.js";
import { attentionAxes, direction, meanMatrix, mergeWeights } from "./tokens.js";

export const needsSentence = true;

const KINDS = { cross: "target to source", encoder: "within the source", decoder: "within the target" };
const LAYER_NAMES = { cross: "Cross-attention", encoder: "Encoder", decoder: "Decoder" };
const NUM_COLORS = 8; // of heads
const MIN_LINE_WIDTH = 560; // pixels; words of narrower pages stand in two columns
const LINE_NAMES = { cross: ["target", "source"], encoder: ["queries", "keys"], decoder: ["queries", "keys"] };
const AXES = { cross: "Rows: target words, the queries. Columns: source words, the keys.", encoder: "Rows: queries. Columns: keys.", decoder: "Rows: queries. Columns: keys." };
const NO_ATTENTION = "This system has no attention: it encodes the source in a state of fixed size.";
const HINT = "Point at a word, or use the arrow keys, to see its attention; click to pin it.";
const CELL_HINT = "Point at a cell, or use the arrow keys in the figure: query → key: weight.";
const MIN_LINK_WEIGHT = { all: 0.12, selected: 0.02 }; // links of all words, and of a selected word

export function show(container, context) {
  const { state, panels, change } = context;
  const kinds = Object.keys(KINDS).filter((kind) => panels.some((panel) => mapsOfKind(panel, kind).length));
  const kind = kinds.includes(state.kind) ? state.kind : kinds[0];
  const numLayers = Math.max(0, ...panels.map((panel) => mapsOfKind(panel, kind).length));
  const numHeads = Math.max(0, ...panels.flatMap((panel) => mapsOfKind(panel, kind).map((map) => map.weights.length)));
  const update = (patch) => {
    change(patch);
    paint();
  };
  const rebuild = (patch) => {
    change({ word: "", ...patch });
    show(container, context);
    container.querySelector(".toolbar [aria-pressed=true]")?.focus();
  };
  const choices = (count) => [[0, "all"], ...Array.from({ length: count }, (_, n) => [n + 1, n + 1])];
  const layer = select("Layer", choices(numLayers), state.layer, (value) => update({ layer: Number(value) }));
  const head = select("Head", choices(numHeads), state.head, (value) => {
    update({ head: Number(value), heads: "" });
    colors.mark();
  });
  const colors = headColors(numHeads, state, (heads) => {
    head.lastChild.value = 0;
    update({ heads: heads.join(","), head: 0 });
  });
  const toolbar = html("div", { class: "toolbar" },
    toggleGroup("Kind of attention", kinds.map((name) => [name, KINDS[name]]), kind, (value) => rebuild({ kind: value, layer: 0, head: 0, heads: "" })),
    layer, head, numHeads > 1 ? colors.element : null,
    toggleGroup("Rows and columns", [["words", "words"], ["tokens", "tokens"]], state.unit, (unit) => update({ unit, word: "" })));
  const selectHead = (patch) => {
    layer.lastChild.value = patch.layer;
    head.lastChild.value = patch.head;
    update({ ...patch, heads: "" });
    colors.mark();
    const heatmap = views.querySelector(`[data-panel="${patch.panel}"] figure`);
    if (patch.head && heatmap) heatmap.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  };
  const views = html("div", { class: "panels" });
  function paint() {
    const focused = document.activeElement?.dataset?.head;
    views.replaceChildren(...panels.map((panel) => panelView(panel, kind, { ...context, selectHead })));
    if (focused) views.querySelector(`[data-head="${focused}"]`)?.focus();
  }
  container.replaceChildren(...(kinds.length ? [toolbar] : []), views);
  paint();
}

/** Return the heads that are shown in colors. */
const coloredHeads = (state, numHeads) => [...new Set(state.heads.split(",").map(Number))].filter((number) => number >= 1 && number <= numHeads);

/** Create buttons of heads, several of which can be pressed; each has the color of its links. */
function headColors(numHeads, state, onChange) {
  const group = html("div", { class: "head-colors", role: "group", "aria-label": "Heads in colors" });
  const mark = () => [...group.children].forEach((button, n) => button.setAttribute("aria-pressed", String(coloredHeads(state, numHeads).includes(n + 1))));
  for (let number = 1; number <= numHeads; number++) {
    group.append(html("button", { type: "button", class: colorClass(number), title: `Show head ${number} in its color`, click: () => {
      const chosen = coloredHeads(state, numHeads);
      onChange(chosen.includes(number) ? chosen.filter((other) => other !== number) : [...chosen, number].sort((a, b) => a - b));
      mark();
    } }, html("span", { class: "color" }), String(number)));
  }
  mark();
  return { element: html("div", { class: "choice" }, "Heads in colors", group), mark };
}

const colorClass = (head) => `head-color${1 + ((head - 1) % NUM_COLORS)}`;

const mapsOfKind = (panel, kind) => panel.inspection?.attention.filter((map) => map.kind === kind) ?? [];

function panelView(panel, kind, { state, panels, change, selectHead }) {
  const { inspection } = panel;
  const maps = mapsOfKind(panel, kind);
  if (!maps.length) {
    const reason = inspection?.attention.length ? `This system has no attention ${KINDS[kind]}.` : NO_ATTENTION;
    return runSection(panel, panels, missingMessage(panel, inspection ? reason : "Loading …"));
  }
  const selected = selectWeights(maps, state);
  const [rows, columns] = attentionAxes(inspection, selected.map, state.unit);
  const weights = mergeWeights(selected.weights, rows, columns);
  const colored = selected.heads.map(({ head, weights: ofHead }) => ({ className: colorClass(head), weights: mergeWeights(ofHead, rows, columns) }));
  const links = linkedWords(panel, kind, rows, columns, weights, colored, { word: state.word, onPin: (word) => change({ word }) });
  const heatmap = attentionHeatmap(rows, columns, weights, selected.title, panels.length > 1 ? 420 : 620, links.highlight);
  links.onHighlight(heatmap.mark);
  const labels = { rows: rows.map((row) => row.label), columns: columns.map((column) => column.label) };
  const values = dataTable(["", ...labels.columns], () => rows.map((row, i) => [row.label, ...weights[i].map(formatPercent)]));
  const fileName = `attention-${panel.run.name}`;
  const isWide = Math.max(...maps.map((map) => map.weights.length)) > 4;
  return runSection(panel, panels, links.element, html("div", { class: isWide ? "pair stacked" : "pair even" },
    framedFigure(selected.title, `${AXES[kind]} A row sums to 100 %.`, heatmap.figure, fileName, () => ({ ...selected.description, ...labels, weights }), [heatmap.status, values], colorScale("attention weight", 0, 1, formatPercent)),
    allHeads(maps, state, (patch) => selectHead({ ...patch, panel: panel.index }), `${fileName}-heads`)));
}

/** Return the weights of the selected layer and head, or their mean over all layers or heads, and those of colored heads. */
function selectWeights(maps, state) {
  const { layer, head } = state;
  const keys = (map) => map.weights[0][0].length;
  const layers = maps[layer - 1] ? [maps[layer - 1]] : maps.filter((map) => keys(map) === keys(maps.at(-1)));
  const numHeads = Math.min(...layers.map((map) => map.weights.length));
  const chosen = coloredHeads(state, numHeads);
  const heads = chosen.map((number) => ({ head: number, weights: meanMatrix(layers.map((map) => map.weights[number - 1])) }));
  const matrices = heads.length ? heads.map((one) => one.weights) : layers.flatMap((map) => (map.weights[head - 1] ? [map.weights[head - 1]] : map.weights));
  const layerName = LAYER_NAMES[maps[0].kind] + (maps[layer - 1] ? ` layer ${layer}` : maps.length > 1 ? ", all layers" : "");
  const headName = chosen.length ? `${chosen.length > 1 ? "heads" : "head"} ${chosen.join(", ")}` : layers[0].weights[head - 1] ? `head ${head}` : matrices.length > 1 ? "all heads" : "";
  return {
    map: layers.at(-1), weights: meanMatrix(matrices), heads, title: [layerName, headName].filter(Boolean).join(", "),
    description: { kind: maps[0].kind, layer: layer || "all", head: chosen.length ? chosen : head || "all" },
  };
}

// ---- linked words

/** Create two lines of words with links between them; pointing at a word highlights its attention. */
function linkedWords(panel, kind, rows, columns, weights, colored, { word, onPin }) {
  const { source, target } = panel.run;
  const languages = { cross: [target, source], encoder: [source, source], decoder: [target, target] }[kind];
  const line = (units, prefix, n) => html("div", { class: "line", role: "group", "aria-label": LINE_NAMES[kind][n], "data-line": prefix, lang: languages[n], dir: direction(languages[n]) },
    units.map((unit, index) => html("button", { type: "button", class: unit.isSpecial ? "word end" : "word", dir: unit.isSpecial ? "ltr" : null, "data-word": `${prefix}${index}` }, unit.label)));
  const [queries, keys] = [line(rows, "q", 0), line(columns, "k", 1)];
  const lines = svg("svg", { class: "links", "aria-hidden": "true" });
  const status = html("p", { class: "attention-status muted", "aria-live": "polite" });
  const element = html("div", { class: "stage" },
    html("span", { class: "name keys-name" }, LINE_NAMES[kind][1]), keys, lines, html("span", { class: "name queries-name" }, LINE_NAMES[kind][0]), queries, status);
  const wordElement = (id) => element.querySelector(`[data-word="${id}"]`);
  let pinned = word;
  let current = word; // the highlighted word: the pinned one, or that under the pointer
  let notify = () => {};

  /** Highlight a word by its id (q3 for a query, k3 for a key), or none. */
  function highlight(id) {
    current = id;
    const highlighted = id && wordElement(id);
    const [axis, index] = highlighted ? [id[0], Number(id.slice(1))] : ["", -1];
    element.dataset.axis = axis;
    weights.forEach((row, i) => wordElement(`q${i}`).style.setProperty("--weight", axis === "k" ? row[index] : 0));
    columns.forEach((_, j) => wordElement(`k${j}`).style.setProperty("--weight", axis === "q" ? weights[index][j] : 0));
    for (const button of element.querySelectorAll(".word")) {
      button.classList.toggle("highlighted", button === highlighted);
      button.setAttribute("aria-pressed", String(button.dataset.word === pinned));
    }
    status.textContent = highlighted ? describe(axis, index) : HINT;
    drawLinks(lines, colored.length ? colored : [{ className: "", weights }], axis, index, wordElement, element.classList.contains("columns"));
    notify(axis, index);
  }

  function describe(axis, index) {
    const shares = axis === "q" ? weights[index].map((weight, j) => [columns[j].label, weight]) : weights.map((row, i) => [rows[i].label, row[index]]);
    const strongest = shares.sort((a, b) => b[1] - a[1]).slice(0, 4).filter(([, weight]) => weight >= 0.01);
    const list = strongest.map(([label, weight]) => `${label} ${formatPercent(weight)}`).join(", ");
    if (axis === "q") return `“${rows[index].label}” attends to ${list}`;
    return list ? `“${columns[index].label}” is attended by ${list}` : `“${columns[index].label}” has hardly any attention`;
  }

  const pin = (id) => {
    pinned = id;
    onPin(pinned);
  };
  const wordOf = (event) => event.target.closest?.("[data-word]")?.dataset.word;
  element.addEventListener("pointerover", (event) => wordOf(event) && highlight(wordOf(event)));
  element.addEventListener("pointerleave", () => highlight(pinned));
  element.addEventListener("focusin", (event) => wordOf(event) && highlight(wordOf(event)));
  element.addEventListener("focusout", () => highlight(pinned));
  element.addEventListener("click", (event) => {
    const id = wordOf(event);
    if (!id) return;
    pin(pinned === id ? "" : id);
    highlight(id);
  });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pin("");
    highlight("");
  });
  rovingFocus(queries, ".word");
  rovingFocus(keys, ".word");
  /** Put the words in two columns if they do not fit in two lines, so that links never cross words. */
  const arrange = () => {
    element.classList.remove("columns");
    const isWrapped = (line) => line.lastChild.getBoundingClientRect().top > line.firstChild.getBoundingClientRect().bottom;
    element.classList.toggle("columns", element.clientWidth < MIN_LINE_WIDTH || isWrapped(queries) || isWrapped(keys));
  };
  let arrangedWidth = 0;
  new ResizeObserver(() => {
    if (!element.isConnected) return;
    if (element.clientWidth !== arrangedWidth) arrange();
    arrangedWidth = element.clientWidth;
    highlight(current);
  }).observe(element);
  return { element, highlight: (id) => highlight(id ?? pinned), onHighlight: (listener) => { notify = listener; } };
}

/** Draw links between words, as strong as their weights: those of one word, or all strong ones; one color for each head. */
function drawLinks(lines, heads, axis, index, wordElement, isColumns) {
  const box = lines.getBoundingClientRect();
  if (!box.width) return;
  lines.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  const position = (id) => {
    const word = wordElement(id).getBoundingClientRect();
    return { left: word.left - box.left, right: word.right - box.left, top: word.top - box.top, bottom: word.bottom - box.top };
  };
  const queries = heads[0].weights.map((_, i) => position(`q${i}`));
  const keys = heads[0].weights[0].map((_, j) => position(`k${j}`));
  const isShown = (weight, i, j) => (axis ? weight >= MIN_LINK_WEIGHT.selected && (axis === "q" ? i : j) === index : weight >= MIN_LINK_WEIGHT.all);
  lines.replaceChildren(...heads.flatMap(({ className, weights }, n) => {
    const shift = 3 * (n - (heads.length - 1) / 2); // links of several heads lie side by side
    return weights.flatMap((row, i) => row.map((weight, j) => [weight, i, j])).filter((link) => isShown(...link)).map(([weight, i, j]) => {
      const path = isColumns ? linkAcross(keys[j], queries[i], shift) : linkDown(keys[j], queries[i], shift);
      return svg("path", { d: path, class: className, "stroke-opacity": round((axis ? 0.95 : 0.6) * Math.sqrt(weight)), "stroke-width": round(1 + (heads.length > 1 ? 2 : 4) * weight) });
    });
  }));
}

function linkDown(from, to, shift) {
  const [x1, x2, middle] = [(from.left + from.right) / 2 + shift, (to.left + to.right) / 2 + shift, round((from.bottom + to.top) / 2)];
  return `M${round(x1)} ${round(from.bottom)}C${round(x1)} ${middle} ${round(x2)} ${middle} ${round(x2)} ${round(to.top)}`;
}

function linkAcross(from, to, shift) {
  const [y1, y2, middle] = [(from.top + from.bottom) / 2 + shift, (to.top + to.bottom) / 2 + shift, round((from.right + to.left) / 2)];
  return `M${round(from.right)} ${round(y1)}C${middle} ${round(y1)} ${middle} ${round(y2)} ${round(to.left)} ${round(y2)}`;
}

// ---- the heatmap

/** Draw a heatmap; arrow keys move between cells. */
function attentionHeatmap(rows, columns, weights, title, maxWidth, highlight) {
  const size = Math.max(16, Math.min(40, maxWidth / columns.length));
  const [rowLabels, columnLabels] = [rows, columns].map((units) => units.map((unit) => shorten(unit.label, 16)));
  const left = labelWidth(rowLabels, 16) + 14;
  const top = 0.8 * labelWidth(columnLabels, 16) + 18;
  const [width, height] = [size * columns.length, size * rows.length];
  const figure = figureSvg(left + width + 0.7 * labelWidth(columnLabels.slice(-1), 16) + 20, top + height + 8, title, `${rows.length} rows by ${columns.length} columns; arrow keys move between cells`);
  rowLabels.forEach((label, i) => figure.append(svg("text", { x: round(left - 8), y: round(top + size * (i + 0.5) + 4.5), "text-anchor": "end", "data-row": i }, label)));
  columnLabels.forEach((label, j) => {
    const [x, y] = [round(left + size * (j + 0.5) + 4), round(top - 8)];
    figure.append(svg("text", { x, y, transform: `rotate(-52 ${x} ${y})`, "data-column": j }, label));
  });
  weights.forEach((row, i) => row.forEach((weight, j) => {
    figure.append(svg("rect", { x: round(left + size * j), y: round(top + size * i), width: round(size), height: round(size), class: "heat cell", "fill-opacity": round(weight), "data-row": i, "data-cell": j }));
    if (size >= 26 && weight >= 0.015) {
      figure.append(svg("text", { x: round(left + size * (j + 0.5)), y: round(top + size * (i + 0.5) + 4), "text-anchor": "middle", class: `number ${textClass(weight)}` }, String(Math.round(100 * weight))));
    }
  }));
  const box = { x: round(left), y: round(top), width: round(width), height: round(height) };
  const rowMarker = svg("rect", { ...box, class: "cursor", height: round(size), visibility: "hidden" });
  const columnMarker = svg("rect", { ...box, class: "cursor", width: round(size), visibility: "hidden" });
  const cellMarker = svg("rect", { class: "cursor", width: round(size), height: round(size), visibility: "hidden" });
  figure.append(svg("rect", { ...box, class: "frame" }), rowMarker, columnMarker, cellMarker);
  const status = html("p", { class: "cell-status figures", "aria-live": "polite" }, CELL_HINT);
  const showCell = (i, j) => {
    status.textContent = `${rows[i].label} → ${columns[j].label}: weight ${formatPercent(weights[i][j])}`;
    for (const [name, value] of Object.entries({ x: round(left + size * j), y: round(top + size * i), visibility: "visible" })) cellMarker.setAttribute(name, value);
  };
  const hideCell = () => {
    status.textContent = CELL_HINT;
    cellMarker.setAttribute("visibility", "hidden");
    highlight();
  };
  figure.setAttribute("tabindex", "0");
  const mark = (axis, index) => {
    rowMarker.setAttribute("visibility", axis === "q" ? "visible" : "hidden");
    columnMarker.setAttribute("visibility", axis === "k" ? "visible" : "hidden");
    if (axis === "q") rowMarker.setAttribute("y", round(top + size * index));
    if (axis === "k") columnMarker.setAttribute("x", round(left + size * index));
  };
  figure.addEventListener("pointermove", (event) => {
    const { row, column, cell: cellColumn } = event.target.dataset;
    if (cellColumn) showCell(Number(row), Number(cellColumn));
    if (row) highlight(`q${row}`);
    else if (column) highlight(`k${column}`);
  });
  figure.addEventListener("pointerleave", hideCell);
  figure.addEventListener("blur", hideCell);
  let cell = [-1, 0];
  figure.addEventListener("keydown", (event) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    cell = [rows, columns].map((units, n) => Math.max(0, Math.min(units.length - 1, cell[n] + step[n])));
    highlight(step[0] ? `q${cell[0]}` : `k${cell[1]}`);
    showCell(...cell);
  });
  return { figure, mark, status };
}

// ---- all heads

/** Create buttons with small maps of all layers and heads, and one figure of all of them to download. */
function allHeads(maps, state, selectHead, fileName) {
  const size = 120;
  const numHeads = Math.max(...maps.map((map) => map.weights.length));
  const buttons = html("div", { class: "multiples" });
  const left = 74;
  const figure = figureSvg(numHeads * (size + 16) + left, maps.length * (size + 34) + 8, "All layers and heads", `${maps.length} layers of up to ${numHeads} heads`);
  maps.forEach((map, l) => {
    const name = `${LAYER_NAMES[map.kind]} layer ${l + 1}`;
    const row = html("div", { class: "heads", role: "group", "aria-label": name }, html("span", { class: "name" }, `layer ${l + 1}`));
    figure.append(svg("text", { x: 4, y: l * (size + 34) + size / 2 + 6 }, `layer ${l + 1}`));
    map.weights.forEach((weights, h) => {
      const isSelected = state.layer === l + 1 && state.head === h + 1;
      const bits = `${formatNumber(map.entropy[h], 1)} bits`;
      const label = `${name}, head ${h + 1}: entropy ${bits}`;
      const small = figureSvg(size, size, "");
      small.setAttribute("aria-hidden", "true");
      small.append(...matrixPaths(weights, [size / weights[0].length, size / weights.length], 8), svg("rect", { class: "frame", width: size, height: size }));
      row.append(html("button", {
        type: "button", class: "thumb", "aria-pressed": String(isSelected), "data-head": `${map.kind}.${l}.${h}`, "aria-label": label, title: `${label}. ${isSelected ? "Show all heads again" : "Enlarge"}`,
        click: () => selectHead(isSelected ? { layer: 0, head: 0 } : { layer: l + 1, head: h + 1 }),
      }, small, html("span", { class: "figures" }, html("b", {}, `head ${h + 1}`), ` ${bits}`)));
      figure.append(svg("g", { transform: `translate(${left + h * (size + 16)} ${l * (size + 34) + 6})` }, [...small.children].map((child) => child.cloneNode(true)),
        svg("text", { y: size + 15, class: "number" }, `head ${h + 1}: ${bits}`)));
    });
    buttons.append(row);
  });
  rovingFocus(buttons, ".thumb", () => numHeads);
  const data = () => maps.map(({ kind, layer, entropy, queries, keys, weights }) => ({ kind, layer, entropy, queries, keys, weights }));
  const framed = framedFigure("All layers and heads", "Select a head to enlarge it. Bits are the entropy of its weights: 0 is one token, 3 like a uniform distribution over eight.", figure, fileName, data, [], colorScale("attention weight", 0, 1, formatPercent));
  framed.querySelector(".scroll").replaceChildren(buttons);
  return framed;
}
