// Error analysis: the test set as a table that is sorted, filtered and opened in the inspector; and the diagnosis.

import { debounce, emptyMessage, failureMessage, formatNumber, html, select, toggleGroup } from "./dom.js";
import { diagnosisView } from "./diagnosis.js";
import { sentenceDetail } from "./error_detail.js";
import { languageQuery } from "./session.js";
import { markedDifference } from "./word_difference.js";

export const needsSentence = false;

const PAGE_SIZE = 50;
const POLL_INTERVAL = 1500; // milliseconds, while an analysis runs
const COLUMNS = [ // name for sorting, heading, explanation
  ["index", "#", "Number of the sentence in the test set"],
  ["source", "Source", ""],
  ["translation", "Translation and reference", ""],
  ["chrf", "chrF", "sacreBLEU's chrF of the sentence: 100 if it equals the reference"],
  ["bleu", "BLEU", "sacreBLEU's sentence BLEU"],
  ["score", "log p", "Log-probability of the translation per token; negative, and close to 0 if the model is certain"],
  ["words", "Words", "Number of words of the source"],
  ["errors", "Errors", "Problems that were found automatically"],
];
const COMPARED = ["difference", "Δ chrF", "Difference of the chrF of both runs"];
const OUTCOMES = [["any", "all sentences"], ["different", "different translations"], ["better", "first run better"], ["worse", "second run better"], ["equal", "equally good"]];
const DEFAULTS = { sort: "chrf", descending: "", offset: "0", min_words: "", max_words: "", error: "", rare: "", contains: "", outcome: "any", part: "sentences" };

let shown = null; // {key, element}: the view that is shown, which is kept while the sentence above changes
let polling = new AbortController();

export function show(container, context) {
  const key = JSON.stringify(context.panels.map(({ run }) => [run.name, languageQuery(run)]));
  if (shown?.key === key && container.contains(shown.element)) return;
  polling.abort();
  polling = new AbortController();
  const element = html("div", { class: "errors" });
  shown = { key, element };
  container.replaceChildren(element);
  errorsView(element, context, polling.signal);
}

const readQuery = (text) => ({ ...DEFAULTS, ...Object.fromEntries([...new URLSearchParams(text)].filter(([name]) => name in DEFAULTS)) });
const formatQuery = (query) => new URLSearchParams(Object.entries(query).filter(([name, value]) => value !== DEFAULTS[name])).toString();

function errorsView(element, context, signal) {
  const { state, panels, change, get } = context;
  const [first, second] = panels.map((panel) => panel.run);
  let query = readQuery(state.analysis);
  let response = null;
  let openIndex = null; // of the sentence whose details are shown
  let timer;
  const status = html("div", { class: "errors-status", role: "status" });
  const summary = html("div", { class: "errors-summary" });
  const filters = html("form", { class: "toolbar errors-filters", role: "search", submit: (event) => event.preventDefault() });
  const table = html("div", { class: "errors-table" }, emptyMessage("Loading …"));
  const pager = html("nav", { class: "toolbar errors-pager", "aria-label": "Pages of the table" });
  const diagnosis = html("div", { hidden: true });
  const sentences = html("div", {}, status, summary, filters, table, pager);
  const part = toggleGroup("Analysis", [["sentences", "Sentences"], ["diagnosis", "Diagnosis"]], query.part, (value) => update({ part: value }));
  element.replaceChildren(html("div", { class: "toolbar" }, part), sentences, diagnosis);
  showFilters();
  update({});

  /** Change the filters, the order or the page, and load the rows. */
  function update(changes, keepPage = false) {
    query = { ...query, ...(keepPage ? {} : { offset: "0" }), ...changes };
    change({ analysis: formatQuery(query) });
    sentences.hidden = query.part !== "sentences";
    diagnosis.hidden = query.part !== "diagnosis";
    if (query.part === "diagnosis") diagnosisView(diagnosis, context, signal);
    else load();
  }

  async function load() {
    clearTimeout(timer);
    const fields = new URLSearchParams(Object.entries({ ...query, ...languageQuery(first), compare: second?.name ?? "", limit: PAGE_SIZE }).filter(([name, value]) => value !== "" && name !== "part"));
    const asked = query;
    try {
      const answer = await get(`/v1/runs/${encodeURIComponent(first.name)}/analysis?${fields}`, signal);
      if (signal.aborted || asked !== query) return;
      response = answer;
    } catch (error) {
      if (signal.aborted) return;
      status.replaceChildren();
      table.replaceChildren(failureMessage(error.message));
      shown = null;
      return;
    }
    showStatus();
    showSummary();
    updateFilters();
    showTable();
    showPager();
    if (response.runs.some((run) => ["waiting", "running"].includes(run.state))) timer = setTimeout(() => element.isConnected && load(), POLL_INTERVAL);
  }

  function showStatus() {
    status.replaceChildren(html("p", { class: "muted" }, `Test set: ${response.test_set}, ${(response.runs[0].total || 0).toLocaleString("en")} sentences.`), ...response.runs.flatMap(({ run, state: jobState, done, total, error }) => {
      if (jobState === "failed") return [html("p", { class: "notice" }, `${run}: ${error}.`)];
      if (jobState === "done") return [];
      const text = jobState === "waiting" ? `${run}: waiting for another analysis …` : `${run}: ${done.toLocaleString("en")} of ${total.toLocaleString("en")} sentences translated …`;
      return [html("p", {}, text, " ", html("progress", { max: total || 1, value: done, "aria-label": `Analysis of ${run}` }))];
    }));
  }

  function showSummary() {
    const names = [...new Set(response.runs.flatMap((run) => Object.keys(run.scores)))];
    const parts = [];
    if (names.length) {
      const head = html("tr", {}, html("th", { scope: "col" }, "Whole test set"), names.map((name) => html("th", { scope: "col", class: "number" }, scoreTitle(name))));
      const rows = response.runs.map(({ run, scores }, n) => html("tr", { "data-panel": n },
        html("th", { scope: "row" }, html("span", { class: "run-name" }, run)),
        names.map((name) => html("td", { title: scores[name]?.signature }, scores[name] ? formatNumber(scores[name].value, 1) : "…"))));
      parts.push(html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scores of the whole test set" }, html("table", {}, html("thead", {}, head), html("tbody", {}, rows))));
    }
    if (second && response.runs.every((run) => run.done)) {
      const { better = 0, worse = 0, equal = 0 } = response.outcomes;
      const choice = (outcome, text) => html("button", { type: "button", "aria-pressed": String(query.outcome === outcome), click: () => update({ outcome: query.outcome === outcome ? "any" : outcome }) }, text);
      parts.push(html("p", { class: "errors-outcomes" }, "By chrF: ", choice("better", `${first.name} better: ${better}`), choice("worse", `${second.name} better: ${worse}`), choice("equal", `equal: ${equal}`)));
    }
    const counts = Object.keys(response.error_kinds).map((kind) => [kind, response.runs.map((run) => run.error_counts[kind] ?? 0)]).filter(([, numbers]) => numbers.some(Boolean));
    if (counts.length) {
      parts.push(html("p", { class: "errors-kinds" }, "Found: ", counts.map(([kind, numbers]) => html("button", {
        type: "button", title: response.error_kinds[kind], "aria-pressed": String(query.error === kind), click: () => update({ error: query.error === kind ? "" : kind }),
      }, `${kind} ${numbers.join(" / ")}`))));
    }
    replaceKeepingFocus(summary, parts);
  }

  function showFilters() {
    const input = (name, label, attributes) => html("label", { class: "choice" }, label, html("input", { name, value: query[name], input: onInput, ...attributes }));
    const onInput = debounce(300, () => {
      const form = new FormData(filters);
      update({ contains: form.get("contains").trim(), min_words: form.get("min_words"), max_words: form.get("max_words"), rare: form.get("rare") ? "true" : "" });
    });
    const rare = html("input", { type: "checkbox", name: "rare", checked: Boolean(query.rare), change: onInput });
    filters.replaceChildren(
      input("contains", "Contains", { type: "search" }),
      select("Error", [["", "any or none"], ["any", "any error"], ["none", "no error"]], query.error, (error) => update({ error })),
      input("min_words", "Words from", { type: "number", min: 0, class: "short" }),
      input("max_words", "to", { type: "number", min: 0, class: "short" }),
      html("label", { class: "choice", title: "Sources with a word that occurs at most once in the training text" }, rare, "with rare words"),
      second ? select("Show", OUTCOMES, query.outcome, (outcome) => update({ outcome })) : "",
      html("button", { type: "button", click: () => { query = { ...DEFAULTS, sort: query.sort, descending: query.descending }; showFilters(); update({}); } }, "Clear filters"));
  }

  /** Offer the kinds of errors that exist, and show the filters that buttons have set. */
  function updateFilters() {
    const [errorSelect, outcomeSelect] = filters.querySelectorAll("select");
    const kinds = Object.keys(response.error_kinds);
    for (const kind of kinds) if (![...errorSelect.options].some((option) => option.value === kind)) errorSelect.append(html("option", { value: kind }, kind));
    errorSelect.value = query.error;
    if (outcomeSelect) outcomeSelect.value = query.outcome;
  }

  function showTable() {
    const columns = second ? [...COLUMNS.slice(0, 4), COMPARED, ...COLUMNS.slice(4)] : COLUMNS;
    const heading = ([name, title, note]) => {
      const isSorted = query.sort === name;
      const order = isSorted ? (query.descending ? "descending" : "ascending") : null;
      const sort = () => update({ sort: name, descending: isSorted && !query.descending ? "true" : "" });
      return html("th", { scope: "col", "aria-sort": order }, html("button", { type: "button", title: note || null, "data-focus": `sort ${name}`, click: sort }, title, html("span", { "aria-hidden": "true" }, isSorted ? (query.descending ? " ▼" : " ▲") : "")));
    };
    if (!response.rows.length) {
      const isRunning = response.runs.some((run) => ["waiting", "running"].includes(run.state));
      table.replaceChildren(emptyMessage(isRunning ? "The first sentences are being translated …" : "No sentence passes the filters."));
      return;
    }
    const body = response.rows.flatMap((row) => [tableRow(row, columns), ...(row.index === openIndex ? [detailRow(row, columns.length)] : [])]);
    const content = html("table", {}, html("caption", { class: "visually-hidden" }, "Sentences of the test set"), html("thead", {}, html("tr", {}, columns.map(heading))), html("tbody", { keydown: moveBetweenRows }, body));
    if (openIndex !== null && table.querySelector(`.detail[data-index="${openIndex}"]`)) keepDetail(content);
    else replaceKeepingFocus(table, [content]);
  }

  /** Update all rows but the details, in which the user may be writing. */
  function keepDetail(content) {
    const detail = table.querySelector(".detail");
    const place = content.querySelector(".detail");
    if (!place) return replaceKeepingFocus(table, [content]);
    const { activeElement } = document;
    const position = detail.contains(activeElement) && activeElement.selectionStart;
    place.replaceWith(detail);
    replaceKeepingFocus(table, [content]);
    if (detail.contains(activeElement)) {
      activeElement.focus();
      if (Number.isInteger(position)) activeElement.setSelectionRange(position, position);
    }
  }

  function tableRow(row, columns) {
    const isOpen = row.index === openIndex;
    const [result, other] = row.results;
    const lines = (values) => values.map((value, n) => html("div", { "data-panel": n, class: "line-value" }, value));
    const translations = row.results.map(({ translation }, n) => html("div", { "data-panel": n, class: "translation-line" },
      second ? html("span", { class: "run-name" }, `${n ? second.name : first.name} `) : null,
      markedDifference(translation, second ? row.results[1 - n].translation : row.reference)));
    const cells = {
      index: html("th", { scope: "row" }, html("button", { type: "button", class: "open-row", "aria-expanded": String(isOpen), "aria-label": `Sentence ${row.index + 1}: details`, "data-focus": `row ${row.index}`, click: () => toggle(row.index) }, String(row.index + 1))),
      source: html("td", { class: "text", dir: "auto" }, markRare(row.source, row.rare_words)),
      translation: html("td", { class: "text" }, translations, result.exact && !(other && !other.exact) ? html("div", { class: "exact" }, "= reference") : html("div", { class: "reference-line", dir: "auto" }, row.reference)),
      chrf: html("td", {}, lines(row.results.map(({ chrf }) => formatNumber(chrf, 1)))),
      difference: html("td", {}, other ? signed(result.chrf - other.chrf) : ""),
      bleu: html("td", {}, lines(row.results.map(({ bleu }) => formatNumber(bleu, 1)))),
      score: html("td", {}, lines(row.results.map(({ score_per_token: score }) => formatNumber(score)))),
      words: html("td", {}, String(row.words)),
      errors: html("td", { class: "text kinds" }, lines(row.results.map(({ errors }) => errors.map(({ kind, detail }) => html("span", { class: "error-kind", title: detail || null }, kind))))),
    };
    return html("tr", { class: isOpen ? "open" : null, click: (event) => event.target.closest("button, a, input, textarea") || getSelection().toString() || toggle(row.index) }, columns.map(([name, title]) => {
      cells[name].dataset.label = title;
      return cells[name];
    }));
  }

  const detailRow = (row, columns) => html("tr", { class: "detail", "data-index": row.index }, html("td", { colspan: columns }, sentenceDetail(row, response.error_kinds, context)));

  function toggle(index) {
    openIndex = openIndex === index ? null : index;
    showTable();
    table.querySelector(`[data-focus="row ${index}"]`)?.focus();
  }

  /** Arrow keys move between rows, Escape closes the details. */
  function moveBetweenRows(event) {
    if (event.key === "Escape" && openIndex !== null) return toggle(openIndex);
    if (!event.target.matches(".open-row")) return undefined;
    const buttons = [...table.querySelectorAll(".open-row")];
    const index = buttons.indexOf(event.target);
    const targets = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: buttons.length - 1 };
    if (event.key === "PageDown" || event.key === "PageUp") turn(event.key === "PageDown" ? 1 : -1);
    else if (!(event.key in targets)) return undefined;
    event.preventDefault();
    buttons[targets[event.key]]?.focus();
    return undefined;
  }

  function turn(by) {
    const offset = Number(query.offset) + by * PAGE_SIZE;
    if (offset < 0 || offset >= response.count) return;
    openIndex = null;
    update({ offset: String(offset) }, true);
  }

  function showPager() {
    const offset = Number(query.offset);
    const last = Math.min(response.count, offset + PAGE_SIZE);
    const button = (by, label) => html("button", { type: "button", "data-focus": label, disabled: by < 0 ? offset === 0 : last >= response.count, click: () => turn(by) }, label);
    replaceKeepingFocus(pager, response.count ? [button(-1, "‹ Previous"), html("span", { class: "figures" }, `${(offset + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${response.count.toLocaleString("en")}`), button(1, "Next ›")] : []);
  }
}

/** Replace the content of an element; the focus returns to the button with the same label. */
function replaceKeepingFocus(element, children) {
  const { activeElement } = document;
  const isInside = element.contains(activeElement);
  const name = isInside && (activeElement.dataset.focus ?? activeElement.textContent);
  element.replaceChildren(...children);
  if (isInside) [...element.querySelectorAll("button")].find((button) => (button.dataset.focus ?? button.textContent) === name)?.focus();
}

const signed = (value) => `${value > 0 ? "+" : ""}${formatNumber(value, 1)}`;
const scoreTitle = (name) => ({ chrf: "chrF", "exact-match": "Exact, %" })[name] ?? (name.startsWith("bleu") ? "BLEU" : name);

/** Underline the rare words of a source. */
function markRare(text, words) {
  if (!words.length) return text;
  const rare = new Set(words);
  return text.split(/([\s.,;:!?()"“”„]+)/).map((part) => (rare.has(part) ? html("span", { class: "rare-word", title: "rare: at most once in the training text" }, part) : part));
}
