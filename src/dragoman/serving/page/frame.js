// The frame of the views: tabs, the selected sentence, and the view itself.

import { byId, emptyMessage, formatNumber, formatPercent, html } from "./dom.js";
import { change, context, page } from "./session.js";
import { VIEWS } from "./views.js";

let shownContent = ""; // describes what the views show
let shown = new AbortController(); // of what a view still loads

/** Show the view again even if its content has not changed. */
export function invalidateViews() {
  shownContent = "";
}

/** Show the selected view of the selected sentence, unless it is already shown. */
export function updateViews() {
  const container = byId("views");
  const view = VIEWS[page.state.view].module;
  const isLoading = page.panels.some((panel) => panel.isLoading);
  container.classList.toggle("stale", isLoading);
  showSentenceBar();
  showTranslationScore();
  const content = JSON.stringify([page.state.view, page.panels.map((panel) => [panel.request, panel.inspection !== null, panel.error])]);
  const keepsOld = isLoading && container.childElementCount && container.dataset.view === page.state.view;
  if (keepsOld || content === shownContent) return; // the user may be interacting with it
  shownContent = content;
  container.dataset.view = page.state.view;
  container.classList.toggle("comparing", page.panels.length > 1);
  const isEmpty = view.needsSentence && !page.panels.some((panel) => panel.inspection || panel.error);
  shown.abort(); // a view that is left must not write over the next one
  shown = new AbortController();
  if (isEmpty) container.replaceChildren(emptyMessage(isLoading ? "Loading …" : "Enter a sentence above to inspect its translation."));
  else view.show(container, { ...context(), signal: shown.signal });
}

/** Compare the score of the user's translation with that of the run's. */
function showTranslationScore() {
  byId("user-translation-row").hidden = !page.panels.some((panel) => panel.sentences[page.state.sentence]?.complete);
  byId("suggest").hidden = !page.settings.suggestions || !page.state.translation.trim();
  const scores = page.panels.map(({ run, sentences, inspection }) => {
    const sentence = sentences[page.state.sentence];
    if (!page.state.translation.trim() || !inspection || inspection.from_search || !sentence) return "";
    const { score, target, steps } = inspection;
    const best = sentence.unforced ?? sentence;
    const isEqual = Math.abs(score - best.score) < 1e-3 * Math.max(1, Math.abs(best.score));
    const comparison = target.text === best.text ? "the run's translation" : `${isEqual ? "as probable as" : score > best.score ? "more probable than" : "less probable than"} the run's translation`;
    return `${page.panels.length > 1 ? `${run.name}: ` : ""}log p ${formatNumber(score)} · ${formatPercent(Math.exp(score / steps.length))} per token · ${comparison}`;
  });
  const text = scores.filter(Boolean).join("; ");
  if (byId("translation-score").textContent !== text) byId("translation-score").textContent = text;
}

/** Show which of several sentences is selected, with buttons for the previous and the next one. */
export function showSentenceBar() {
  const sentences = page.panels[0]?.sentences ?? [];
  const bar = byId("selected-sentence");
  bar.hidden = sentences.length < 2 || !VIEWS[page.state.view].module.needsSentence;
  if (bar.hidden) return;
  const focused = bar.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const button = (by, label, sign) => html("button", { type: "button", "aria-label": label, disabled: !sentences[page.state.sentence + by], click: () => page.actions.selectSentence(page.state.sentence + by) }, sign);
  bar.replaceChildren(
    button(-1, "Previous sentence", "‹"),
    html("span", { class: "figures" }, `Sentence ${page.state.sentence + 1} of ${sentences.length}`),
    button(1, "Next sentence", "›"),
    html("span", { class: "muted one-line", dir: "auto" }, sentences[page.state.sentence]?.source ?? ""));
  if (!focused) return;
  const replacement = bar.querySelector(`[aria-label="${focused}"]`);
  (replacement.disabled ? bar.querySelector("button:not([disabled])") : replacement)?.focus();
}

export function showTabs() {
  byId("tabs").replaceChildren(...Object.entries(VIEWS).map(([view, { title }]) => html("button", {
    type: "button", role: "tab", id: `tab-${view}`, "aria-controls": "views",
    click: () => openView(view), focus: () => view !== page.state.view && openView(view),
  }, title)));
  markTab();
}

function markTab() {
  for (const tab of byId("tabs").children) {
    const isSelected = tab.id === `tab-${page.state.view}`;
    tab.setAttribute("aria-selected", String(isSelected));
    tab.tabIndex = isSelected ? 0 : -1;
    if (isSelected) scrollToTab(tab);
  }
  byId("views").setAttribute("aria-labelledby", `tab-${page.state.view}`);
  byId("view-title").textContent = VIEWS[page.state.view].title;
}

/** Scroll the row of tabs, but not the page, to a tab. */
function scrollToTab(tab) {
  const [box, frame] = [tab.getBoundingClientRect(), byId("tabs").getBoundingClientRect()];
  if (box.left < frame.left || box.right > frame.right) byId("tabs").scrollLeft += box.left - frame.left - (frame.width - box.width) / 2;
}

function openView(view) {
  change({ view });
  markTab();
  updateViews();
}

/** Let the keyboard reach areas of the views that can be scrolled, as soon as their content is wider or higher than they are. */
export function setUpScrolling() {
  const makeFocusable = () => {
    for (const area of byId("views").querySelectorAll(".scroll:not([tabindex])")) {
      if (area.scrollWidth <= area.clientWidth && area.scrollHeight <= area.clientHeight) continue;
      const heading = area.closest("figure, section")?.querySelector("h3, h4")?.textContent;
      for (const [name, value] of Object.entries({ tabindex: 0, role: "region", "aria-label": heading || "Table" })) area.setAttribute(name, value);
    }
  };
  new MutationObserver(() => requestAnimationFrame(makeFocusable)).observe(byId("views"), { childList: true, subtree: true });
  window.addEventListener("resize", makeFocusable);
}
