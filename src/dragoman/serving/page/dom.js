// Elements, made in one expression. Text only ever becomes text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element of HTML: functions among the attributes are listeners, null and false are left out. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same of SVG. */
export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A select with these values; `chosen` is told. */
export function select(label, options, value, chosen) {
  const list = make("select", { change: () => chosen(list.value) });
  list.append(...options.map(([key, text]) => make("option", { value: key, selected: String(key) === String(value) }, text)));
  return make("label", { class: "choice" }, label, list);
}

/** Buttons of which one is pressed. */
export function switches(label, options, value, chosen) {
  const group = make("div", { class: "group", role: "group", "aria-label": label });
  for (const [key, text] of options) {
    const pressed = () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      chosen(key);
    };
    const button = make("button", { type: "button", "aria-pressed": String(key === value), click: pressed }, text);
    group.append(button);
  }
  return group;
}

/** Arrow keys go from one to the next of what `items` gives: one of them is reached by Tab. */
export function roving(container, items, columns = () => 1) {
  const all = () => [...container.querySelectorAll(items)];
  const only = (one) => all().forEach((item) => { item.tabIndex = item === one ? 0 : -1; });
  container.addEventListener("focusin", (event) => event.target.matches(items) && only(event.target));
  container.addEventListener("keydown", (event) => {
    const list = all();
    const place = list.indexOf(event.target);
    const row = columns();
    const forward = getComputedStyle(event.target).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const steps = { ArrowRight: -1, ArrowLeft: -1, [forward]: 1, ArrowDown: row, ArrowUp: -row, Home: -place, End: list.length - 1 - place };
    if (place < 0 || !(event.key in steps)) return;
    event.preventDefault();
    list[Math.max(0, Math.min(list.length - 1, place + steps[event.key]))].focus();
  });
  only(all().find((item) => item.tabIndex === 0 && item.matches("[aria-pressed=true], [aria-selected=true]")) ?? all()[0]);
}

/** A table that is built when somebody opens it: what a picture shows, as numbers. */
export function table(heading, rows) {
  const details = make("details", { class: "numbers" }, make("summary", {}, "As a table"));
  const build = () => {
    if (!details.open || details.children.length > 1) return;
    const cell = (text, n) => make(n === 0 ? "th" : "td", n === 0 ? { scope: "row", dir: "auto" } : {}, String(text));
    const head = make("tr", {}, heading.map((text) => make("th", { scope: "col", dir: "auto" }, text)));
    const body = rows().map((row) => make("tr", {}, row.map(cell)));
    details.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
      make("table", {}, make("thead", {}, head), make("tbody", {}, body))));
  };
  details.addEventListener("toggle", build);
  return details;
}

export function later(delay, work) {
  let timer;
  const run = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), delay);
  };
  run.cancel = () => clearTimeout(timer);
  return run;
}

/** A number as people read it: a true minus, no more digits than asked for unless it would be nothing then. */
export function figure(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const more = Math.abs(value) < 0.5 * 10 ** -digits ? 2 : 0;
  const text = value.toFixed(digits + more).replace("-", "−");
  return /[1-9]/.test(text) ? text : "0";
}

/** A share: 87 %, 0.4 %, < 0.1 %. */
export function percent(share) {
  if (share < 0.0005) return share > 0 ? "<\u00a00.1\u00a0%" : "0\u00a0%";
  const hundredth = 100 * share;
  const whole = hundredth >= 9.95 && (hundredth < 99 || hundredth >= 99.95);
  return `${hundredth.toFixed(whole ? 0 : 1)}\u00a0%`;
}

/** The probability of a word: it may be small, but is never nothing. */
export function chance(probability) {
  if (probability >= 0.0005) return percent(probability);
  const share = 100 * probability;
  return share < 0.00005 ? "<\u00a00.0001\u00a0%" : `${share.toFixed(Math.ceil(-Math.log10(share)))}\u00a0%`;
}
