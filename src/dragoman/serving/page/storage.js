// What the browser keeps for this page; until the page is closed where the user has blocked storage, or it is full.

function wrap(name) {
  const fallback = new Map();
  return {
    get(key) {
      try {
        return window[name].getItem(key);
      } catch {
        return fallback.get(key) ?? null;
      }
    },
    /** Store a text, or (null) remove it. */
    set(key, value) {
      try {
        if (value === null) window[name].removeItem(key);
        else window[name].setItem(key, value);
      } catch {
        fallback.set(key, value);
      }
    },
  };
}

export const localStore = wrap("localStorage");
export const sessionStore = wrap("sessionStorage");
