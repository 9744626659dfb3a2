// Presentation mode: full screen, large type, and the translator in one line.

import { byId } from "./dom.js";
import { change, page } from "./session.js";

/** Show the page as its state says; the browser's full screen needs a click or a key. */
export function showPresentation() {
  const isOn = Boolean(page.state.present);
  document.documentElement.classList.toggle("presenting", isOn);
  byId("present").setAttribute("aria-pressed", String(isOn));
  byId("present").textContent = isOn ? "End presentation" : "Present";
  if (isOn && document.activeElement === byId("source")) byId("source").blur(); // a page begins there, which opens the translator
}

/** Switch presentation mode on or off, with the browser's full screen where that is allowed. */
export async function togglePresentation(isOn = !page.state.present) {
  change({ present: Number(isOn) });
  showPresentation();
  window.dispatchEvent(new Event("resize")); // figures have another size
  if (isOn && !document.fullscreenElement) await document.documentElement.requestFullscreen?.().catch(() => {});
  else if (!isOn && document.fullscreenElement) await document.exitFullscreen().catch(() => {});
}

export function setUpPresentation() {
  byId("present").addEventListener("click", () => togglePresentation());
  document.addEventListener("fullscreenchange", () => {
    if (!document.fullscreenElement && page.state.present) togglePresentation(false); // by Escape
  });
  showPresentation();
}
