// Light or dark, and how large the type is: a matter of the reader, and so not in the link.

import { byId } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const SIZES = [0.875, 1, 1.15, 1.35, 1.6, 2];
const kept = { theme: localStorage.getItem("dragoman theme") ?? "auto", size: Number(localStorage.getItem("dragoman size")) || 1 };

function apply() {
  const root = document.documentElement;
  root.dataset.theme = kept.theme;
  root.style.setProperty("--size", kept.size);
  byId("theme").textContent = `Theme: ${kept.theme}`;
  byId("smaller").disabled = kept.size === SIZES[0];
  byId("larger").disabled = kept.size === SIZES.at(-1);
  for (const [name, value] of Object.entries(kept)) localStorage.setItem(`dragoman ${name}`, value);
}

export function begin() {
  const resize = (by) => () => {
    kept.size = SIZES[Math.max(0, Math.min(SIZES.length - 1, SIZES.indexOf(kept.size) + by))];
    apply();
  };
  if (!SIZES.includes(kept.size)) kept.size = 1;
  if (!THEMES.includes(kept.theme)) kept.theme = "auto";
  byId("smaller").addEventListener("click", resize(-1));
  byId("larger").addEventListener("click", resize(1));
  byId("theme").addEventListener("click", () => {
    kept.theme = THEMES[(THEMES.indexOf(kept.theme) + 1) % THEMES.length];
    apply();
  });
  apply();
}
