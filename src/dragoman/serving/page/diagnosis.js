// The diagnosis of runs: known failures of translation, each as a number with its explanation and examples.

import { emptyMessage, failureMessage, formatNumber, html, runSection } from "./dom.js";
import { languageQuery } from "./session.js";

const POLL_INTERVAL = 2000; // milliseconds

/** Show the diagnosis of each run; it is measured in the background when it is first asked for. */
export async function diagnosisView(container, { panels, get }, signal) {
  if (container.childElementCount) return;
  const sections = panels.map((panel) => ({ panel, body: html("div", {}, emptyMessage("The known failures of translation are being measured …")) }));
  container.replaceChildren(html("div", { class: "panels" }, sections.map(({ panel, body }) => runSection(panel, panels, body))));
  await Promise.all(sections.map(({ panel, body }) => measure(panel.run, body, get, signal)));
}

async function measure(run, body, get, signal) {
  try {
    for (;;) {
      const { state, error, diagnosis } = await get(`/v1/runs/${encodeURIComponent(run.name)}/diagnosis?${new URLSearchParams(languageQuery(run))}`, signal);
      if (state === "failed") throw new Error(error);
      if (state === "done") {
        body.replaceChildren(html("p", { class: "muted" }, `${diagnosis.sentences} sentences of the test set, and some unusual ones.`), ...diagnosis.findings.map(finding));
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL));
      if (signal.aborted || !body.isConnected) return;
    }
  } catch (error) {
    if (!signal.aborted) body.replaceChildren(failureMessage(error.message));
  }
}

function finding({ title, value, unit, explanation, examples, bands, choices }) {
  const example = ({ source, translation, remark }) => html("li", {}, html("p", { dir: "auto" }, source), html("p", { dir: "auto" }, "→ ", translation || "(nothing)"), remark ? html("p", { class: "muted" }, remark) : null);
  const rows = bands.map(({ words, sentences, bleu, exact_match: exact }) => html("tr", {}, html("th", { scope: "row" }, `${words} words`), html("td", {}, String(sentences)), html("td", {}, formatNumber(bleu, 1)), html("td", {}, `${formatNumber(exact, 1)} %`)));
  const number = value === null ? "not measured" : `${formatNumber(value, unit ? 1 : 2)} ${unit}`.trim();
  return html("article", { class: "finding" },
    html("h3", {}, title, html("span", { class: "figures finding-value" }, number)),
    html("p", {}, explanation),
    rows.length ? html("table", {}, html("thead", {}, html("tr", {}, ["Length", "Sentences", "BLEU", "Exact match"].map((text) => html("th", { scope: "col" }, text)))), html("tbody", {}, rows)) : null,
    choices.length ? html("p", { class: "muted" }, choices.map(({ subject, words }) => `${subject}: ${Object.keys(words).map((word) => word || "–").join(", ")}`).join("; ")) : null,
    examples.length ? html("details", { class: "numbers" }, html("summary", {}, `${examples.length} ${examples.length === 1 ? "example" : "examples"}`), html("ul", { class: "finding-examples" }, examples.map(example))) : null);
}
