// The start of the page: event listeners, and the runs that are served.

import { get, setApiKey } from "./api.js";
import { copyOnClick } from "./clipboard.js";
import { applyState, fillSelects, setUpSelects, showRuns } from "./controls.js";
import { byId, rovingFocus } from "./dom.js";
import { setUpFiles } from "./files.js";
import { invalidateViews, setUpScrolling, updateViews } from "./frame.js";
import { force, onTranslationTyped, selectSentence, stepForced, stepsOfTranslation, suggestTranslation } from "./inspection.js";
import { setUpLanguages } from "./languages.js";
import { setUpPresentation } from "./presentation.js";
import { setUpRetry, showAndRetry } from "./retry.js";
import { linkToState, page } from "./session.js";
import { setUpShortcuts } from "./shortcuts.js";
import { replaceSource, setUpSourceBox } from "./source_box.js";
import { setUpSpeech } from "./speech.js";
import { parseState } from "./state.js";
import { setUpTheme } from "./theme.js";
import { onSourceTyped } from "./translating.js";
import { setUpHistory } from "./translation_history.js";
import { translationText } from "./translation.js";
import { setUpWordMenu } from "./word_menu.js";

function addListeners() {
  byId("source").addEventListener("input", () => {
    if (!page.runs.length) page.state.text = byId("source").value; // typed while the page loads: applyState() translates it
    byId("views").classList.add("stale");
    onSourceTyped();
  });
  byId("source").addEventListener("change", onSourceTyped.flush); // whatever the user does next is about this text
  byId("clear").addEventListener("click", () => replaceSource(""));
  byId("user-translation").addEventListener("input", onTranslationTyped);
  byId("views").addEventListener("reload-view", () => {
    invalidateViews();
    selectSentence(page.state.sentence);
    updateViews();
  });
  byId("user-translation").addEventListener("change", onTranslationTyped.flush);
  byId("suggest").addEventListener("click", suggestTranslation);
  byId("undo").addEventListener("click", () => stepForced(true));
  byId("redo").addEventListener("click", () => stepForced(false));
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(byId("secret").value.trim());
    byId("key").hidden = true;
    if (page.runs.length) applyState();
    else start();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment of the address is the state
    byId("views").focus();
  });
  copyOnClick(byId("copy"), () => {
    history.replaceState(null, "", linkToState());
    return location.href;
  });
  copyOnClick(byId("copy-translation"), () => page.panels.map(translationText).join("\n\n"));
  window.addEventListener("hashchange", () => {
    page.state = parseState(location.hash);
    if (page.runs.length) applyState(); // otherwise start() does
  });
  rovingFocus(byId("tabs"), "[role=tab]");
}

/** Load what the service offers: runs, languages and limits. */
async function loadService() {
  const [runs, languages, settings] = await Promise.all([get("/v1/runs"), get("/languages"), get("/frontend/settings")]);
  const hasChanged = JSON.stringify(runs) !== JSON.stringify(page.runs);
  page.runs = runs;
  page.languageNames = new Map(languages.map(({ code, name }) => [code, name]));
  page.settings = { maxCharacters: Math.max(0, settings.charLimit), files: settings.filesTranslation, fileFormats: settings.supportedFilesFormat ?? [], suggestions: settings.suggestions };
  byId("keep-numbers-row").hidden = !page.settings.files;
  if (hasChanged) fillSelects();
  return hasChanged;
}

/** Go on after an error: if the service could not be reached, it may have other runs now. */
async function reconnect(error, again) {
  if (error.status === 0 && (await loadService().catch(() => false))) applyState();
  else again();
}

async function start(attempt = 0) {
  try {
    await loadService();
  } catch (error) {
    showAndRetry(error, attempt, (next = attempt) => start(next));
    return;
  }
  applyState();
}

page.actions = { selectSentence, force, stepsOfTranslation, applyState, showRuns, reconnect };
for (const setUp of [setUpTheme, setUpRetry, setUpSourceBox, setUpLanguages, setUpSelects, setUpFiles, setUpSpeech, setUpHistory, setUpWordMenu, setUpPresentation, setUpShortcuts, setUpScrolling, addListeners]) setUp();
start();
