// The history of translations, which is stored in this browser only.

import { openDialog, storedCheckbox } from "./dialog.js";
import { byId, html } from "./dom.js";
import { change, page } from "./session.js";
import { localStore } from "./storage.js";

const STORAGE_KEY = "dragoman history";
const ENABLED_KEY = "dragoman history enabled";
const MAX_ENTRIES = 50;
const MAX_CHARACTERS = 2000; // longer texts are not stored

const isEnabled = () => localStore.get(ENABLED_KEY) !== "off";

function readEntries() {
  try {
    const entries = JSON.parse(localStore.get(STORAGE_KEY) ?? "[]");
    return Array.isArray(entries) ? entries.filter((entry) => typeof entry?.text === "string" && typeof entry?.translation === "string") : [];
  } catch {
    return []; // damaged
  }
}

const writeEntries = (entries) => localStore.set(STORAGE_KEY, JSON.stringify(entries.slice(0, MAX_ENTRIES)));

/** Add the translation that is shown; one that continues the last text, as when typing, replaces it. */
export function remember() {
  const [panel] = page.panels;
  const text = page.state.text.trim();
  const translation = panel.sentences.map((sentence) => sentence.text + (sentence.spaceAfter ?? "")).join("").trim();
  if (!isEnabled() || !text || text.length > MAX_CHARACTERS) return;
  const { run, from, to } = page.state;
  const entries = readEntries().filter((entry) => entry.text !== text || entry.run !== run);
  const last = entries[0];
  if (last && last.run === run && (text.startsWith(last.text) || last.text.startsWith(text))) entries.shift();
  writeEntries([{ text, translation, run, from, to, time: Date.now() }, ...entries]);
}

function restore(entry) {
  change({ text: entry.text, run: entry.run ?? page.state.run, from: entry.from ?? "", to: entry.to ?? "", translation: "", forced: {}, sentence: 0, step: 0, word: "" });
  page.actions.applyState();
  byId("source").focus();
}

/** Show the stored translations in a dialog. */
export function openHistory() {
  const list = html("ol", { class: "history-list" });
  const note = html("p", { class: "muted" });
  const clear = html("button", { type: "button", click: () => {
    writeEntries([]);
    show();
  } }, "Clear history");
  const show = () => {
    const entries = readEntries();
    list.replaceChildren(...entries.map((entry) => html("li", {}, html("button", { type: "button", click: () => {
      dialog.close();
      restore(entry);
    } }, html("span", { dir: "auto" }, entry.text), html("span", { class: "muted", dir: "auto" }, entry.translation)))));
    note.textContent = entries.length ? `The last ${MAX_ENTRIES} texts are stored in this browser only.` : isEnabled() ? "Nothing has been translated yet." : "The history is switched off.";
    clear.hidden = !entries.length;
  };
  const enabled = storedCheckbox("Keep a history in this browser", ENABLED_KEY, (isOn) => {
    if (!isOn) writeEntries([]);
    show();
  });
  const dialog = openDialog("history-dialog", "History", list, note, html("div", { class: "dialog-tools" }, enabled, clear));
  show();
}

export function setUpHistory() {
  byId("history").addEventListener("click", openHistory);
}
