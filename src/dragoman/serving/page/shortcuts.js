// Keyboard shortcuts, and a dialog that lists them.

import { openDialog, storedCheckbox } from "./dialog.js";
import { byId, html } from "./dom.js";
import { togglePresentation } from "./presentation.js";
import { page } from "./session.js";
import { localStore } from "./storage.js";
import { openHistory } from "./translation_history.js";
import { VIEWS } from "./views.js";

const STORAGE_KEY = "dragoman shortcuts";
const click = (id) => () => byId(id).click();
const nextSentence = (by) => () => page.panels[0]?.sentences[page.state.sentence + by] && page.actions.selectSentence(page.state.sentence + by);

/** What the keys do, and how the dialog describes them. */
const SHORTCUTS = [
  ["?", "this help", openHelp],
  ["/", "go to the text", () => byId("source").focus()],
  ["p", "presentation mode", () => togglePresentation()],
  ["[", "previous sentence", nextSentence(-1)],
  ["]", "next sentence", nextSentence(1)],
  ["c", "copy the translation", click("copy-translation")],
  ["s", "swap languages", click("swap")],
  ["z", "undo the choice of a word", click("undo")],
  ["y", "redo the choice of a word", click("redo")],
  ["h", "history", openHistory],
  ["t", "light or dark theme", click("theme")],
  ["+", "larger font", click("larger")],
  ["-", "smaller font", click("smaller")],
];

/** Show what the page can do, and its keys. */
export function openHelp() {
  const row = (keys, text) => html("tr", {}, html("th", { scope: "row" }, keys.flatMap((key, n) => [n ? " – " : null, html("kbd", {}, key)])), html("td", {}, text));
  const last = Math.min(9, Object.keys(VIEWS).length);
  const table = html("table", {}, html("tbody", {}, SHORTCUTS.map(([key, text]) => row([key === "-" ? "−" : key.toUpperCase()], text)), row(["1", String(last)], "views, in the order of their tabs"), row(["Esc"], "leave the text field, close a menu, end the presentation")));
  openDialog("help-dialog", "Help",
    html("p", {}, "Type a text to see its translation. Click a sentence of the translation to inspect it below, and a word of it to see and choose other words: the rest is then translated again. Underlined words have a warning."),
    html("p", {}, "Words and tabs can also be reached with Tab and the arrow keys. Outside text fields, single keys are shortcuts:"),
    table, storedCheckbox("Use single-key shortcuts", STORAGE_KEY));
}

export function setUpShortcuts() {
  byId("help").addEventListener("click", openHelp);
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("textarea, select, input:not([type=checkbox], [type=range])");
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else if (page.state.present && !document.querySelector("dialog[open]")) togglePresentation(false);
      return;
    }
    if (isTyping || document.querySelector("dialog[open]") || localStore.get(STORAGE_KEY) === "off") return;
    const view = /^[1-9]$/.test(event.key) ? Object.keys(VIEWS)[event.key - 1] : undefined;
    const action = view ? () => byId(`tab-${view}`).click() : SHORTCUTS.find(([key]) => key === event.key.toLowerCase())?.[2];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
