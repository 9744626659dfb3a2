// Helpers that create and connect DOM elements. Text is always inserted as text, never parsed as markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Create an HTML element. Attributes with functions become event listeners; null and false are omitted. */
export const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** Create an SVG element. */
export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG_NAMESPACE, name), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Create a section for one run; its name is visible if several runs are compared. */
export const runSection = (panel, panels, ...children) =>
  html("section", {
    class: "panel", "data-panel": panel.index, "data-run": panel.run.name, "data-sentence": panel.inspection?.source?.text, "data-translation": panel.inspection?.target?.text,
  }, html("h3", { class: panels.length > 1 ? null : "visually-hidden" }, panel.run.name), ...children);

export const emptyMessage = (text) => html("p", { class: "empty" }, text);

/** Say why something could not be loaded, with a button that loads the view again: an event that `main.js` handles. */
export const failureMessage = (text) => html("div", { class: "empty", role: "alert" }, html("p", {}, text),
  html("button", { type: "button", click: ({ target }) => target.dispatchEvent(new Event("reload-view", { bubbles: true })) }, "Try again"));

/** Say why the inspection of a panel failed, or else why there is nothing to show. */
export const missingMessage = (panel, reason) => (panel.error ? failureMessage(panel.error) : emptyMessage(reason));

/** Create a labeled select element. */
export function select(label, options, value, onChange) {
  const list = html("select", { change: () => onChange(list.value) });
  list.append(...options.map(([key, text]) => html("option", { value: key, selected: String(key) === String(value) }, text)));
  return html("label", { class: "choice" }, label, list);
}

/** Create a group of buttons, one of which is pressed. */
export function toggleGroup(label, options, value, onChange) {
  const group = html("div", { class: "group", role: "group", "aria-label": label });
  for (const [key, text] of options) {
    const press = () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      onChange(key);
    };
    const button = html("button", { type: "button", "aria-pressed": String(key === value), click: press }, text);
    group.append(button);
  }
  return group;
}

/** Roving tabindex: Tab reaches one of the items, arrow keys move between them. */
export function rovingFocus(container, selector, columns = () => 1) {
  const items = () => [...container.querySelectorAll(selector)];
  const setTabStop = (current) => items().forEach((item) => { item.tabIndex = item === current ? 0 : -1; });
  container.addEventListener("focusin", (event) => event.target.matches(selector) && setTabStop(event.target));
  container.addEventListener("keydown", (event) => {
    const list = items();
    const index = list.indexOf(event.target);
    const row = columns();
    const forward = getComputedStyle(event.target).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const steps = { ArrowRight: -1, ArrowLeft: -1, [forward]: 1, ArrowDown: row, ArrowUp: -row, Home: -index, End: list.length - 1 - index };
    if (index < 0 || !(event.key in steps)) return;
    event.preventDefault();
    list[Math.max(0, Math.min(list.length - 1, index + steps[event.key]))].focus();
  });
  setTabStop(items().find((item) => item.tabIndex === 0 && item.matches("[aria-pressed=true], [aria-selected=true]")) ?? items()[0]);
}

/** Create a collapsed table of the values of a figure; `rows()` is called when it is opened. */
export function dataTable(heading, rows) {
  const details = html("details", { class: "numbers" }, html("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const cell = (text, n) => html(n === 0 ? "th" : "td", n === 0 ? { scope: "row", dir: "auto" } : {}, String(text));
    const head = html("tr", {}, heading.map((text) => html("th", { scope: "col", dir: "auto" }, text)));
    const body = rows().map((row) => html("tr", {}, row.map(cell)));
    details.append(html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
      html("table", {}, html("thead", {}, head), html("tbody", {}, body))));
  });
  return details;
}

/** Return a function that calls `work` once it has not been called for `delay` milliseconds. */
export function debounce(delay, work) {
  let timer = null;
  const run = () => {
    run.cancel();
    timer = setTimeout(() => {
      timer = null;
      work();
    }, delay);
  };
  run.cancel = () => {
    clearTimeout(timer);
    timer = null;
  };
  /** Do what waits at once. */
  run.flush = () => {
    if (timer === null) return;
    run.cancel();
    work();
  };
  return run;
}

/** Format a number with a minus sign; small numbers get two more digits. */
export function formatNumber(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const extraDigits = Math.abs(value) < 0.5 * 10 ** -digits ? 2 : 0;
  const text = value.toFixed(digits + extraDigits).replace("-", "−");
  return /[1-9]/.test(text) ? text : "0";
}

/** Format a share: 87 %, 0.4 %, < 0.1 %. */
export function formatPercent(share) {
  if (share < 0.0005) return share > 0 ? "<\u00a00.1\u00a0%" : "0\u00a0%";
  const percent = 100 * share;
  const whole = percent >= 9.95 && (percent < 99 || percent >= 99.95);
  return `${percent.toFixed(whole ? 0 : 1)}\u00a0%`;
}

/** Format a probability, which is never shown as zero. */
export function formatProbability(probability) {
  if (probability >= 0.0005) return formatPercent(probability);
  const percent = 100 * probability;
  return percent < 0.005 ? "<\u00a00.01\u00a0%" : `${percent.toFixed(Math.ceil(-Math.log10(percent)))}\u00a0%`;
}
