// Speech: the translation is read out and the source is dictated, where the browser can do so.

import { byId } from "./dom.js";
import { page } from "./session.js";
import { languageTag } from "./tokens.js";

const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
let recognition = null;

/** Offer to read out the translation if there is one, and the browser has a voice. */
export function showSpeech() {
  const hasText = page.panels[0]?.sentences.some((sentence) => sentence.complete && sentence.text.trim());
  byId("speak").hidden = !hasText || !window.speechSynthesis?.getVoices().length;
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
  const [panel] = page.panels;
  const utterance = new SpeechSynthesisUtterance(panel.sentences.map((sentence) => sentence.text).join(" "));
  utterance.lang = languageTag(panel.run.target);
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
  recognition = new Recognition();
  recognition.lang = languageTag(page.panels[0]?.run.source ?? "en");
  recognition.interimResults = true;
  recognition.continuous = true;
  recognition.onresult = ({ results }) => {
    source.value = before + [...results].map((result) => result[0].transcript).join("");
    source.dispatchEvent(new Event("input"));
  };
  recognition.onend = recognition.onerror = () => {
    recognition = null;
    setPressed(button, false, labels);
  };
  setPressed(button, true, labels);
  recognition.start();
}

export function setUpSpeech() {
  byId("dictate").hidden = !Recognition || !window.isSecureContext; // browsers give the microphone to secure pages only
  byId("dictate").addEventListener("click", dictate);
  byId("speak").addEventListener("click", speak);
  window.speechSynthesis?.addEventListener?.("voiceschanged", showSpeech);
}
