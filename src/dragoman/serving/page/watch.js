// The page of `dragoman train --watch` and `dragoman watch`: the progress of one training, which is polled.

import { get } from "./api.js";
import { curveCharts } from "./curves.js";
import { byId, html } from "./dom.js";
import { keepFocus, sentenceParts, statusParts } from "./progress.js";
import { setUpTheme } from "./theme.js";

const POLL_INTERVAL = 2000; // milliseconds

let shown = "";

async function update() {
  let progress;
  try {
    progress = await get("/v1/progress");
  } catch {
    byId("notice").textContent = "The page of this training has ended; this is its last state. “dragoman watch RUN” shows it again.";
    byId("notice").hidden = false;
    return;
  }
  byId("notice").hidden = true;
  const { seconds_since_update: _, ...content } = progress;
  const key = JSON.stringify(content);
  if (key === shown) return;
  shown = key;
  const percent = progress.fraction_done ? `${Math.floor(100 * progress.fraction_done)} % ` : "";
  document.title = `${percent}${progress.run} – Dragoman`;
  byId("run-name").textContent = progress.run;
  keepFocus(byId("training"), () => byId("training").replaceChildren(
    ...statusParts(progress),
    html("div", { class: "gallery" }, progress.curves.length ? curveCharts([{ name: progress.run, index: 0, curves: progress.curves }]) : []),
    ...sentenceParts(progress)));
}

async function poll() {
  if (!document.hidden) await update();
  setTimeout(poll, POLL_INTERVAL);
}

setUpTheme();
poll();
