// The menu of other words at a position of the translation.

import { post } from "./api.js";
import { byId, formatProbability, html, rovingFocus } from "./dom.js";
import { page, runFields } from "./session.js";
import { wordUnits } from "./tokens.js";

const COUNT = 8; // words
let close = () => {};

/** Open the menu of the words that the run finds most probable in place of a word of the translation. */
export async function openWordMenu(panel, sentenceIndex, unitIndex, anchor) {
  close();
  const sentence = panel.sentences[sentenceIndex];
  const list = html("div", { class: "choices", role: "dialog", "aria-label": `Other words for ${anchor.textContent}`, tabindex: "-1" }, html("p", { class: "muted" }, "Looking for other words …"));
  const section = anchor.closest(".result");
  section.append(list);
  place(list, anchor, section);
  let isOpen = true;
  close = (restoreFocus = false) => {
    isOpen = false;
    list.remove();
    document.removeEventListener("pointerdown", closeOutside);
    anchor.classList.remove("open");
    if (restoreFocus) anchor.focus();
    close = () => {};
  };
  const closeOutside = (event) => list.contains(event.target) || close();
  document.addEventListener("pointerdown", closeOutside);
  list.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "Tab") return;
    event.preventDefault();
    event.stopPropagation();
    close(true);
  });
  anchor.classList.add("open");
  list.focus();
  try {
    const steps = await page.actions.stepsOfTranslation(panel);
    const first = wordUnits(sentence.text, sentence.tokens)[unitIndex].tokens[0];
    const prefix = steps.slice(0, first).map((step) => step.token_id);
    const { alternatives } = await post("/v1/alternatives", { ...runFields(panel.run), text: sentence.source, prefix, count: COUNT }, page.translation.signal);
    if (!isOpen) return;
    const choose = (ids) => () => {
      close();
      page.actions.force(panel, [...prefix, ...ids]);
      anchor.focus();
    };
    list.replaceChildren(...alternatives.map((other) => option(other, other.token_ids.every((id, n) => id === steps[first + n]?.token_id), panel.run.target, choose(other.token_ids), () => close(true))));
    rovingFocus(list, ".option");
    place(list, anchor, section);
    (list.querySelector("[aria-pressed=true]") ?? list.firstChild).focus({ preventScroll: true });
  } catch (error) {
    if (!isOpen) return;
    const retry = html("button", { type: "button", click: () => openWordMenu(panel, sentenceIndex, unitIndex, anchor) }, "Try again");
    list.replaceChildren(html("p", {}, error.message), retry);
    retry.focus();
  }
}

function option({ word, probability, text }, isCurrent, language, choose, keep) {
  const button = html("button", { type: "button", class: "option", "aria-pressed": String(isCurrent), title: text, click: isCurrent ? keep : choose },
    html("span", { class: "piece", lang: language, dir: "auto" }, word || "(end)"), html("span", { class: "bar" }), html("span", { class: "figures" }, formatProbability(probability)));
  button.style.setProperty("--share", probability);
  return button;
}

/** Place the menu below a word, inside the section. */
function place(list, anchor, section) {
  const [outer, box] = [section.getBoundingClientRect(), anchor.getClientRects()[0]];
  list.style.left = `${Math.max(0, Math.min(box.left - outer.left, outer.width - list.offsetWidth))}px`;
  list.style.top = `${box.bottom - outer.top + 4}px`;
}

/** Close the menu, if it is open. */
export const closeWordMenu = () => close();

export function setUpWordMenu() {
  byId("target").addEventListener("scroll", () => close(), true);
}
