// Color scheme and font size, which are stored in the browser and not in the link.

import { byId } from "./dom.js";
import { localStore } from "./storage.js";

const THEMES = ["auto", "light", "dark"];
const SIZES = [0.875, 1, 1.15, 1.35, 1.6, 2];
const stored = { theme: localStore.get("dragoman theme"), size: Number(localStore.get("dragoman size")) };
const settings = { theme: THEMES.includes(stored.theme) ? stored.theme : "auto", size: SIZES.includes(stored.size) ? stored.size : 1 };

function apply(changes) {
  Object.assign(settings, changes);
  const root = document.documentElement;
  root.dataset.theme = settings.theme;
  root.style.setProperty("--chosen-size", settings.size);
  byId("theme").textContent = `Theme: ${settings.theme}`;
  byId("smaller").disabled = settings.size === SIZES[0];
  byId("larger").disabled = settings.size === SIZES.at(-1);
  for (const [name, value] of Object.entries(settings)) localStore.set(`dragoman ${name}`, value);
}

export function setUpTheme() {
  const resize = (step) => () => apply({ size: SIZES[Math.max(0, Math.min(SIZES.length - 1, SIZES.indexOf(settings.size) + step))] });
  byId("smaller").addEventListener("click", resize(-1));
  byId("larger").addEventListener("click", resize(1));
  byId("theme").addEventListener("click", () => apply({ theme: THEMES[(THEMES.indexOf(settings.theme) + 1) % THEMES.length] }));
  apply({});
}
