// The menus above the page and the examples, and what is shown for a state.

import { get } from "./api.js";
import { byId, html } from "./dom.js";
import { invalidateViews, showTabs } from "./frame.js";
import { forgetForced } from "./inspection.js";
import { showLanguages } from "./languages.js";
import { showNotice } from "./notices.js";
import { showPresentation } from "./presentation.js";
import { change, findRun, languagesOf, page } from "./session.js";
import { direction, languageTag } from "./tokens.js";
import { translate } from "./translating.js";

const BEAM_SIZES = [1, 2, 3, 4, 5, 8, 12];

/** Show the runs and the text of the state. */
export function applyState() {
  const missing = [page.state.run, page.state.compare].filter((name) => name && !findRun(name));
  if (!BEAM_SIZES.includes(Number(page.state.beam))) page.state.beam = "";
  showRuns();
  const values = { beam: page.state.beam, source: page.state.text, "user-translation": page.state.translation };
  for (const [id, value] of Object.entries(values)) if (byId(id).value !== value) byId(id).value = value;
  forgetForced();
  showPresentation();
  showTabs();
  translate();
  if (missing.length) showNotice(`The link refers to ${missing.join(" and ")}, which is not served here; this is ${page.state.run}.`);
}

/** Create a panel for each selected run, and show the runs and their languages. */
export function showRuns() {
  const selected = [findRun(page.state.run) ?? page.runs[0], findRun(page.state.compare)].filter(Boolean);
  page.state.run = selected[0].name;
  page.state.compare = selected[1]?.name ?? "";
  invalidateViews();
  page.panels = selected.map((run, index) => ({ run: { ...run, ...languagesOf(run) }, index, sentences: [], inspection: null, forced: 0, error: null, isLoading: false, request: null }));
  const { source, target } = languagesOf(selected[0]);
  showLanguages(selected[0]);
  warnAboutLanguages(page.panels);
  Object.assign(byId("source"), { lang: languageTag(source), dir: direction(source) });
  byId("source-marks").dir = direction(source);
  byId("user-translation").lang = languageTag(target);
  for (const id of ["run", "compare"]) {
    byId(id).value = page.state[id];
    byId(id).title = byId(id).selectedOptions[0]?.textContent ?? "";
  }
  showExamples();
}

/** Say so if the runs that are compared translate between different languages. */
function warnAboutLanguages([first, second]) {
  const pair = ({ run }) => `${page.languageNames.get(run.source) ?? run.source} to ${page.languageNames.get(run.target) ?? run.target}`;
  const isDifferent = second && pair(first) !== pair(second);
  byId("run-warning").hidden = !isDifferent;
  byId("run-warning").textContent = isDifferent ? `${first.run.name} translates from ${pair(first)}, but ${second.run.name} from ${pair(second)}: their translations, probabilities and attention cannot be compared.` : "";
}

export function fillSelects() {
  const languages = (run) => (run.languages.length ? `${run.languages.length} languages` : `${run.source} → ${run.target}`);
  const label = (run) => [run.name, languages(run), run.system !== run.name && run.system].filter(Boolean).join(" · ");
  const options = () => page.runs.map((run) => html("option", { value: run.name }, label(run)));
  byId("run").replaceChildren(...options());
  byId("compare").closest(".field").hidden = page.runs.length < 2;
  byId("compare").replaceChildren(html("option", { value: "" }, "no other run"), ...options());
  byId("beam").replaceChildren(html("option", { value: "" }, "default"), ...BEAM_SIZES.map((size) => html("option", { value: size }, size === 1 ? "1 (greedy)" : size)));
}

export function setUpSelects() {
  for (const name of ["run", "compare", "beam"]) {
    byId(name).addEventListener("change", () => {
      const panel = { run: "0.", compare: "1." }[name]; // another run has other token ids
      const forced = Object.fromEntries(Object.entries(page.state.forced).filter(([key]) => panel === undefined || !key.startsWith(panel)));
      change({ [name]: byId(name).value, forced, step: 0, word: "", ...(name === "run" ? { from: "", to: "" } : {}) });
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
    byId("source").dispatchEvent(new Event("input"));
  };
  container.replaceChildren(...examples.map((text) => html("button", { type: "button", lang: languageTag(languagesOf(run).source), dir: "auto", click: use(text) }, text)));
  container.hidden = Boolean(page.state.text) || !examples.length;
}
