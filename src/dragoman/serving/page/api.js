// The service: questions, answers, and answers that come word by word.

const KEY = "dragoman key";

/** What the service answered instead: an HTTP status (0: nothing at all) and a plain sentence. */
export class Failure extends Error {
  constructor(status, message, retry = null) {
    super(message);
    this.status = status;
    this.retry = retry; // seconds
  }
}

export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const dropKey = () => sessionStorage.removeItem(KEY);

async function ask(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    throw gone(error);
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Failure(answer.status, sentence(told.error ?? `the service answered ${answer.status}`), Number(answer.headers.get("retry-after")) || null);
}

function gone(error) {
  return error.name === "AbortError" ? error : new Failure(0, "The service cannot be reached: is it still running?");
}

/** As the page writes it: with a capital and a full stop. */
function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");
}

export const get = async (path, signal) => (await ask(path, null, signal)).json();
export const post = async (path, body, signal) => (await ask(path, body, signal)).json();

/** Server-sent events: `heard(name, data)` for each, until the last. */
export async function listen(path, body, signal, heard) {
  const answer = await ask(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (waiting + value).split("\n\n");
      waiting = events.pop();
      for (const event of events) {
        const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(event);
        const told = JSON.parse(data);
        if (name === "error") throw new Failure(500, sentence(told.error));
        heard(name, told);
      }
    }
  } catch (error) {
    throw error instanceof Failure ? error : gone(error);
  }
}
