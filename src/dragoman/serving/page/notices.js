// Notices and errors above the translator.

import { ServiceError, removeApiKey } from "./api.js";
import { byId } from "./dom.js";
import { updateTranslations } from "./translation.js";

export function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

export function showError(error) {
  byId("busy").textContent = "";
  const message = error instanceof ServiceError ? error.message : "The page has failed: reload it.";
  byId("key").hidden = error.status !== 403;
  if (error.status === 403) removeApiKey();
  showNotice(error.retryAfter ? `${message} Trying again in a moment.` : message);
  byId("views").classList.remove("stale");
  updateTranslations();
}
