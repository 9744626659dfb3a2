// Repetition of a request that failed because the service is restarting or busy.

import { byId } from "./dom.js";
import { showError } from "./notices.js";

const DELAYS = [1, 2, 4, 8, 15]; // seconds before each repetition; the last one again and again
const MAX_ATTEMPTS = 50; // about ten minutes
const TEMPORARY = new Set([0, 429, 502, 503, 504]); // status; 0: the service cannot be reached
let timer = null;
let repeat = null;

/** Do not repeat the last request. */
export function cancelRetry() {
  clearInterval(timer);
  byId("countdown").textContent = "";
  byId("retry").hidden = true;
  repeat = null;
}

/** Show an error, and call `again(attempt)` after a while if it is temporary, or when the user asks for it. */
export function showAndRetry(error, attempt, again) {
  cancelRetry();
  showError(error);
  if (error.status === 403) return; // a key is needed
  repeat = () => {
    const work = again;
    cancelRetry();
    work();
  };
  byId("retry").hidden = false;
  if (!TEMPORARY.has(error.status) || attempt >= MAX_ATTEMPTS) return;
  const work = again;
  let seconds = Math.max(Math.ceil(error.retryAfter ?? 0), DELAYS[Math.min(attempt, DELAYS.length - 1)]);
  const tick = () => {
    byId("countdown").textContent = `Trying again in ${seconds} s.`;
    if (seconds-- > 0) return;
    cancelRetry();
    work(attempt + 1);
  };
  tick();
  timer = setInterval(tick, 1000);
}

export function setUpRetry() {
  byId("retry").addEventListener("click", () => repeat?.());
}
