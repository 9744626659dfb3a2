// Notices and errors above the translator.

import { ServiceError, removeApiKey } from "./api.js";
import { byId } from "./dom.js";

/** Show a sentence above the translator, or hide it ("") again. */
export function showNotice(text) {
  if (byId("notice-text").textContent !== text) byId("notice-text").textContent = text;
  byId("notice").hidden = !text;
}

/** Show an error as a sentence; a missing API key is asked for. */
export function showError(error) {
  byId("busy").textContent = "";
  if (!(error instanceof ServiceError)) console.error(error);
  byId("key").hidden = error.status !== 403;
  if (error.status === 403) removeApiKey();
  showNotice(error instanceof ServiceError ? error.message : "The page has failed: reload it.");
  byId("views").classList.remove("stale");
}
