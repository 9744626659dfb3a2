// Training: how loss and quality went, of one run or of two in one picture.

import { draw, make, table } from "./dom.js";
import { framed, picture, round, ticks } from "./svg.js";

export const ofSentence = false;

const PICTURES = [
  ["Loss", "−log p of a target piece; lower is better. Where validation turns up while training goes on down, it learns by heart.", ["training loss", "validation loss"]],
  ["BLEU", "Of validation sentences, translated greedily; higher is better.", ["BLEU"]],
  ["Exact match", "Validation sentences that equal the reference, in %.", ["exact match"]],
  ["Accuracy", "How often the likeliest piece was the right one, in %.", ["accuracy"]],
  ["Learning rate", "How large a step it took.", ["learning rate"]],
];
const SHARES = ["BLEU", "exact match", "accuracy"]; // of 100
const RIGHT = 30;
const WIDE = 560;
const TALL = 250;
const LEFT = 52;
const BOTTOM = 36;
const known = new Map();

export async function show(place, { sides, get }) {
  const box = make("div", { class: "gallery" }, make("p", { class: "empty" }, "Looking …"));
  place.replaceChildren(box);
  try {
    for (const { run } of sides) {
      if (!known.has(run.name)) known.set(run.name, (await get(`/v1/runs/${encodeURIComponent(run.name)}/curves`)).curves);
    }
  } catch (error) {
    box.firstChild.textContent = error.message;
    return;
  }
  const pictures = PICTURES.map(([title, note, names]) => {
    const series = sides.flatMap(({ run, number }) => known.get(run.name).filter((curve) => names.includes(curve.name))
      .map(({ name, points }) => ({ points, side: number, quiet: name === "training loss", name: [sides.length > 1 ? run.name : "", names.length > 1 ? name.replace(" loss", "") : sides.length > 1 ? "" : name].filter(Boolean).join(", ") })));
    return series.length ? chart(title, note, series, SHARES.includes(names[0])) : null;
  }).filter(Boolean);
  box.replaceChildren(...(pictures.length ? pictures : [make("p", { class: "empty" }, "Nothing was written down while this run was trained.")]));
}

function chart(title, note, series, shares) {
  const all = series.flatMap((one) => one.points);
  const across = ticks(0, Math.max(...all.map(([x]) => x)), 6);
  const values = all.map(([, y]) => y);
  const up = shares ? ticks(0, 100) : ticks(Math.min(0, ...values), Math.max(...values));
  const ends = [across.at(-1), up[0], up.at(-1)];
  const at = ([x, y]) => [LEFT + (x / ends[0]) * (WIDE - LEFT - RIGHT), 14 + (1 - (y - ends[1]) / (ends[2] - ends[1])) * (TALL - 14 - BOTTOM)];
  const told = series.map((one) => `${one.name} ends at ${short(one.points.at(-1)[1])}`).join("; ");
  const legendTall = 22 * Math.ceil(series.length / 2);
  const svg = picture(WIDE, TALL + legendTall, title, told);
  for (const y of up) {
    const [, place] = at([0, y]);
    svg.append(draw("line", { x1: LEFT, x2: WIDE - RIGHT, y1: round(place), y2: round(place), class: "rule" }), draw("text", { x: LEFT - 8, y: round(place + 4), "text-anchor": "end", class: "number" }, short(y)));
  }
  for (const x of across) svg.append(draw("text", { x: round(at([x, 0])[0]), y: TALL - BOTTOM + 20, "text-anchor": "middle", class: "number" }, x.toLocaleString("en")));
  svg.append(draw("text", { x: WIDE - RIGHT, y: TALL - 2, "text-anchor": "end", class: "faint" }, "step"));
  series.forEach((one, n) => {
    const line = one.points.map((point) => at(point).map(round).join(" ")).join("L");
    const kind = `curve series${one.side}${one.quiet ? " quiet" : ""}`;
    svg.append(draw("path", { d: `M${line}`, class: kind }));
    if (one.points.length < 40) svg.append(...one.points.map((point) => draw("circle", { cx: round(at(point)[0]), cy: round(at(point)[1]), r: 2.6, class: `dot series${one.side}` })));
    const [x, y] = [LEFT + (n % 2) * 250, TALL + 12 + 22 * Math.floor(n / 2)];
    svg.append(draw("line", { x1: x, x2: x + 26, y1: y - 4, y2: y - 4, class: kind }), draw("text", { x: x + 34, y, class: "faint" }, one.name));
  });
  aim(svg, series, at);
  return framed(title, note, svg, title.toLowerCase().replace(" ", "-"), () => series.map(({ name, points }) => ({ name, points })),
    [table(["step", ...series.map((one) => one.name)], () => rows(series))]);
}

/** Whoever points at a step is told what was measured there. */
function aim(svg, series, at) {
  const line = draw("line", { class: "aim", y1: 14, y2: TALL - BOTTOM, visibility: "hidden" });
  const told = draw("text", { x: WIDE - RIGHT, y: 12, "text-anchor": "end", class: "number bold" });
  svg.append(line, told);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDE;
    const near = series.map((one) => one.points.reduce((best, point) => (Math.abs(at(point)[0] - x) < Math.abs(at(best)[0] - x) ? point : best)));
    const place = round(at(near.at(-1))[0]);
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    line.setAttribute("visibility", "visible");
    told.textContent = `step ${Math.round(near.at(-1)[0]).toLocaleString("en")}: ${near.map(([, y]) => short(y)).join(" · ")}`;
  });
  svg.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    told.textContent = "";
  });
}

function rows(series) {
  const steps = [...new Set(series.flatMap((one) => one.points.map(([step]) => step)))].sort((a, b) => a - b);
  const maps = series.map((one) => new Map(one.points));
  return steps.map((step) => [Math.round(step), ...maps.map((map) => (map.has(step) ? short(map.get(step)) : ""))]);
}

const short = (value) => (value === 0 ? "0" : Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3))));
