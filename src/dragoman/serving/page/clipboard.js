// Copying text, also where the page has no access to the clipboard: navigator.clipboard exists only on https and localhost.

import { html } from "./dom.js";

/** Copy a text; returns whether that succeeded. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed: try the older way
    }
  }
  return copySelection(text);
}

/** Copy a text by selecting it, as all browsers allow after a click or a key. */
function copySelection(text) {
  const focused = document.activeElement;
  const field = html("textarea", { readonly: true, class: "visually-hidden", "aria-hidden": "true", tabindex: "-1" });
  field.value = text;
  (focused?.closest("dialog") ?? document.body).append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  return isCopied;
}

/** Copy a text when a button is clicked, and show the result on the button for a moment. */
export function copyOnClick(button, text) {
  const label = button.textContent;
  let timer;
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(text())) ? "Copied" : "Press Ctrl+C in the text";
    clearTimeout(timer);
    timer = setTimeout(() => { button.textContent = label; }, 1500);
  });
}
