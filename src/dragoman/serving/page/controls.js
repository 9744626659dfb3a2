// The menus above the page and the examples, and what is shown for a state.

import { get } from "./api.js";
import { byId, html } from "./dom.js";
import { invalidateViews, showTabs } from "./frame.js";
import { showNotice } from "./notices.js";
import { change, findRun, languagesOf, page } from "./session.js";
import { direction, languageTag } from "./tokens.js";
import { onSourceTyped, translate } from "./translating.js";

const BEAM_SIZES = [1, 2, 3, 4, 5, 8, 12];

/** Show the runs and the text of the state. */
export function applyState() {
  const selected = [findRun(page.state.run) ?? page.runs[0], findRun(page.state.compare)].filter(Boolean);
  const missing = [page.state.run, page.state.compare].filter((name) => name && !findRun(name));
  page.state.run = selected[0]?.name ?? "";
  page.state.compare = selected[1]?.name ?? "";
  if (!BEAM_SIZES.includes(Number(page.state.beam))) page.state.beam = "";
  invalidateViews();
  page.panels = selected.map((run, index) => ({ run: { ...run, ...languagesOf(run) }, index, sentences: [], inspection: null, forced: 0, error: null, isLoading: false, request: null }));
  const { source, target } = languagesOf(selected[0]);
  showLanguages(selected[0]);
  Object.assign(byId("source"), { lang: languageTag(source), dir: direction(source) });
  byId("source-name").textContent = page.languageNames.get(source) ?? source;
  byId("target-name").textContent = page.languageNames.get(target) ?? target;
  byId("user-translation").lang = languageTag(target);
  const values = { run: page.state.run, compare: page.state.compare, beam: page.state.beam, source: page.state.text, "user-translation": page.state.translation };
  for (const [id, value] of Object.entries(values)) if (byId(id).value !== value) byId(id).value = value;
  showTabs();
  showExamples();
  translate();
  if (missing.length) showNotice(`The link refers to ${missing.join(" and ")}, which is not served here; this is ${page.state.run}.`);
}

/** Offer the languages of a multilingual run in place of the names of its languages. */
function showLanguages(run) {
  const languages = languagesOf(run);
  for (const [id, side] of [["from", "source"], ["to", "target"]]) {
    const select = byId(id);
    select.hidden = !run.languages.length;
    byId(`${side}-name`).classList.toggle("visually-hidden", !select.hidden);
    const label = ({ code, name }) => (name === code ? code : `${name} (${code})`);
    if (select.dataset.run !== run.name) select.replaceChildren(...run.languages.map((language) => html("option", { value: language.code }, label(language))));
    select.dataset.run = run.name;
    select.value = languages[side];
  }
}

export function fillSelects() {
  const languages = (run) => (run.languages.length ? `${run.languages.length} languages` : `${run.source} → ${run.target}`);
  const label = (run) => [run.name, run.system !== run.name && run.system, languages(run)].filter(Boolean).join(" · ");
  const options = () => page.runs.map((run) => html("option", { value: run.name }, label(run)));
  byId("run").replaceChildren(...options());
  byId("compare").replaceChildren(html("option", { value: "" }, "no other run"), ...options());
  byId("beam").replaceChildren(html("option", { value: "" }, "default"), ...BEAM_SIZES.map((size) => html("option", { value: size }, size === 1 ? "1 (greedy)" : size)));
  for (const name of ["run", "compare", "beam", "from", "to"]) {
    byId(name).addEventListener("change", () => {
      const panel = { run: "0.", compare: "1.", from: "", to: "" }[name]; // another run or language has other token ids
      const forced = Object.fromEntries(Object.entries(page.state.forced).filter(([key]) => panel === undefined || !key.startsWith(panel)));
      change({ [name]: byId(name).value, forced, step: 0, word: "" });
      applyState();
    });
  }
}

async function showExamples() {
  const { run } = page.panels[0];
  const container = byId("examples");
  if (container.dataset.run === run.name) return;
  container.dataset.run = run.name;
  const { examples } = await get(`/v1/runs/${encodeURIComponent(run.name)}/examples`).catch(() => ({ examples: [] }));
  const use = (text) => () => {
    byId("source").value = text;
    onSourceTyped();
  };
  container.replaceChildren(...examples.map((text) => html("button", { type: "button", lang: languageTag(languagesOf(run).source), dir: "auto", click: use(text) }, text)));
  container.hidden = Boolean(page.state.text) || !examples.length;
}
