// The start of the page: event listeners, and the runs that are served.

import { get, setApiKey } from "./api.js";
import { applyState, fillSelects } from "./controls.js";
import { byId, rovingFocus } from "./dom.js";
import { force, onTranslationTyped, selectSentence } from "./inspection.js";
import { showError } from "./notices.js";
import { linkToState, page } from "./session.js";
import { parseState } from "./state.js";
import { setUpTheme } from "./theme.js";
import { onSourceTyped } from "./translating.js";

function addListeners() {
  byId("source").addEventListener("input", () => {
    if (!page.runs.length) page.state.text = byId("source").value; // typed while the page loads: applyState() translates it
    byId("views").classList.add("stale");
    onSourceTyped();
  });
  byId("user-translation").addEventListener("input", onTranslationTyped);
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(byId("secret").value.trim());
    byId("key").hidden = true;
    applyState();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment of the address is the state
    byId("views").focus();
  });
  byId("copy").addEventListener("click", async () => {
    history.replaceState(null, "", linkToState());
    byId("copy").textContent = await navigator.clipboard.writeText(location.href).then(() => "Copied", () => "Copy the address instead");
    setTimeout(() => { byId("copy").textContent = "Copy link"; }, 1500);
  });
  window.addEventListener("hashchange", () => {
    page.state = parseState(location.hash);
    if (page.runs.length) applyState(); // otherwise start() does
  });
  rovingFocus(byId("tabs"), "[role=tab]");
}

async function start() {
  page.actions = { selectSentence, force };
  setUpTheme();
  addListeners();
  try {
    const [servedRuns, languages] = await Promise.all([get("/v1/runs"), get("/languages")]);
    page.runs = servedRuns;
    page.languageNames = new Map(languages.map(({ code, name }) => [code, name]));
  } catch (error) {
    showError(error);
    return;
  }
  fillSelects();
  applyState();
}

start();
