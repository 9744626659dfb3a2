// Speech: the translation is read out and the source is dictated, where the browser can do so.

import { byId } from "./dom.js";
import { showNotice } from "./notices.js";
import { page } from "./session.js";
import { languageTag } from "./tokens.js";

const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
const ERRORS = {
  "not-allowed": "The browser does not allow this page to use the microphone.",
  "audio-capture": "There is no microphone.",
  "no-speech": "Nothing was heard.",
  network: "The browser cannot reach the service that recognizes speech.",
  "language-not-supported": "The browser does not recognize speech in this language.",
};
let recognition = null;

/** Return the first part of a language tag in its usual form: "en" for en_GB and eng-Latn. */
function primaryLanguage(tag) {
  try {
    return new Intl.Locale(tag.replace(/_/g, "-")).language;
  } catch {
    return tag; // not a language tag
  }
}

/** Return a voice of the browser for the language of the translation, if it has one. */
function findVoice() {
  const language = primaryLanguage(languageTag(page.panels[0].run.target));
  return window.speechSynthesis?.getVoices().find((voice) => primaryLanguage(voice.lang) === language);
}

/** Offer to read out the translation if there is one, and the browser has a voice for it. */
export function showSpeech() {
  const hasText = page.panels[0]?.sentences.some((sentence) => sentence.complete && sentence.text.trim());
  byId("speak").hidden = !hasText || !findVoice();
  if (!hasText) window.speechSynthesis?.cancel();
}

function setPressed(button, isPressed, labels) {
  button.setAttribute("aria-pressed", String(isPressed));
  button.textContent = labels[Number(isPressed)];
}

function speak() {
  const button = byId("speak");
  const labels = ["Listen", "Stop"];
  if (speechSynthesis.speaking) {
    speechSynthesis.cancel();
    setPressed(button, false, labels);
    return;
  }
  const voice = findVoice();
  const utterance = Object.assign(new SpeechSynthesisUtterance(page.panels[0].sentences.map((sentence) => sentence.text).join(" ")), { voice, lang: voice.lang });
  utterance.onend = utterance.onerror = () => setPressed(button, false, labels);
  setPressed(button, true, labels);
  speechSynthesis.speak(utterance);
}

/** Start or stop dictation; what is recognized is appended to the text. */
function dictate() {
  const button = byId("dictate");
  const labels = ["Dictate", "Stop"];
  if (recognition) {
    recognition.stop();
    return;
  }
  const source = byId("source");
  const before = source.value && !/\s$/.test(source.value) ? `${source.value} ` : source.value;
  let shown = source.value;
  recognition = new Recognition();
  recognition.lang = languageTag(page.panels[0]?.run.source ?? "en");
  recognition.interimResults = true;
  recognition.continuous = true;
  recognition.onresult = ({ results }) => {
    if (source.value !== shown) return recognition?.abort(); // the user types
    source.value = shown = before + [...results].map((result) => result[0].transcript).join("");
    return source.dispatchEvent(new Event("input"));
  };
  recognition.onend = () => {
    recognition = null;
    setPressed(button, false, labels);
  };
  recognition.onerror = ({ error }) => error !== "aborted" && showNotice(ERRORS[error] ?? `The browser cannot recognize speech (${error}).`);
  setPressed(button, true, labels);
  recognition.start();
}

export function setUpSpeech() {
  byId("dictate").hidden = !Recognition || !window.isSecureContext; // browsers give the microphone to secure pages only
  byId("dictate").addEventListener("click", dictate);
  byId("speak").addEventListener("click", speak);
  window.speechSynthesis?.addEventListener?.("voiceschanged", showSpeech);
  window.addEventListener("pagehide", () => window.speechSynthesis?.cancel()); // some browsers would go on
}
