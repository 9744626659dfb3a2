// Requests to the service, and server-sent events.

import { sessionStore } from "./storage.js";

const STORAGE_KEY = "dragoman key";
/** A random id of this page: many users may share an address, and each gets a fair share of the service. */
const CLIENT_ID = Array.from(crypto.getRandomValues(new Uint32Array(4)), (number) => number.toString(36)).join("");

/** An error response: its HTTP status (0 if the service cannot be reached), a message, and seconds until a retry. */
export class ServiceError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export const hasApiKey = () => Boolean(sessionStore.get(STORAGE_KEY));
export const setApiKey = (key) => sessionStore.set(STORAGE_KEY, key);
export const removeApiKey = () => sessionStore.set(STORAGE_KEY, null);

async function request(path, body, signal) {
  const headers = { "x-client-id": CLIENT_ID };
  const key = sessionStore.get(STORAGE_KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  const isForm = body instanceof FormData;
  if (body && !isForm) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(`.${path}`, { method: body ? "POST" : "GET", headers, body: body && !isForm ? JSON.stringify(body) : body, signal });
  } catch (error) {
    throw connectionError(error);
  }
  if (response.ok) return response;
  const { error = `the service answered with status ${response.status}` } = await response.json().catch(() => ({}));
  throw new ServiceError(response.status, capitalized(error), Number(response.headers.get("retry-after")) || null);
}

const connectionError = (error) => (error.name === "AbortError" ? error : new ServiceError(0, "The service cannot be reached: is it still running?"));

/** Format a message as a sentence, with a capital and a full stop. */
const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");

export const get = async (path, signal) => (await request(path, null, signal)).json();
export const post = async (path, body, signal) => (await request(path, body, signal)).json();
/** Send a form with a file. */
export const upload = async (path, form, signal) => (await request(path, form, signal)).json();

/** Save a page that the service returns as a file. */
export async function downloadPage(path, fileName) {
  const address = URL.createObjectURL(await (await request(path, null)).blob());
  const link = Object.assign(document.createElement("a"), { href: address, download: fileName });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Send a request and call `onEvent(name, data)` for every server-sent event of the response, the last of which is "done". */
export async function streamEvents(path, body, signal, onEvent) {
  const response = await request(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let [buffer, isComplete] = ["", false];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done && !isComplete) throw new ServiceError(0, "The connection was interrupted.");
      if (done) return;
      const events = (buffer + value).split("\n\n");
      buffer = events.pop();
      for (const event of events) {
        const [, name, text] = /^event: (\w+)\ndata: (.*)$/s.exec(event);
        const data = JSON.parse(text);
        if (name === "error") throw new ServiceError(500, capitalized(data.error));
        onEvent(name, data);
        isComplete = name === "done";
      }
    }
  } catch (error) {
    throw error instanceof ServiceError ? error : connectionError(error);
  }
}
