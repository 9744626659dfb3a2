// Modal dialogs.

import { html } from "./dom.js";
import { localStore } from "./storage.js";

/** Create a modal dialog with a heading and a button that closes it; it is removed when it closes. */
export function openDialog(id, title, ...content) {
  document.getElementById(id)?.remove();
  const dialog = html("dialog", { id, class: "dialog", "aria-labelledby": `${id}-title` },
    html("div", { class: "dialog-head" }, html("h2", { id: `${id}-title` }, title), html("button", { type: "button", "aria-label": "Close", click: () => dialog.close() }, "✕")),
    ...content);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // outside
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Create a labeled checkbox that is stored in the browser. */
export function storedCheckbox(label, storageKey, onChange = () => {}) {
  const box = html("input", { type: "checkbox", checked: localStore.get(storageKey) !== "off", change: () => {
    localStore.set(storageKey, box.checked ? "on" : "off");
    onChange(box.checked);
  } });
  return html("label", { class: "checkbox" }, box, label);
}
