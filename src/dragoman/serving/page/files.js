// Files that are opened or dropped: plain text becomes the source, other formats are translated by the service.

import { upload } from "./api.js";
import { byId, html } from "./dom.js";
import { showError, showNotice } from "./notices.js";
import { excessCharacters } from "./source_box.js";
import { page } from "./session.js";

const isPlainText = (file) => /\.(txt|text)$/i.test(file.name) || (file.type === "text/plain" && !/\.\w+$/.test(file.name));
const extension = (name) => /\.\w+$/.exec(name)?.[0].toLowerCase() ?? "";

/** Translate a file: as text in the page, or by the service. */
export async function openFile(file) {
  if (isPlainText(file)) {
    const text = await file.text();
    if (text.includes("\ufffd")) showNotice(`${file.name} is not UTF-8 text: some characters cannot be read.`);
    if (excessCharacters(text) <= 0 || !page.settings.files) {
      byId("source").value = text;
      byId("source").dispatchEvent(new Event("input"));
      return;
    }
  }
  const formats = page.settings.fileFormats;
  if (!page.settings.files || (formats.length && !formats.includes(extension(file.name)))) {
    showNotice(`${file.name} cannot be translated: choose ${page.settings.files ? `one of ${formats.join(", ")}` : "a text file (.txt)"}.`);
    return;
  }
  await translateFile(file);
}

async function translateFile(file) {
  const result = byId("file-result");
  result.hidden = false;
  result.replaceChildren(`Translating ${file.name} …`);
  const { source, target } = page.panels[0].run;
  const form = new FormData();
  for (const [name, value] of Object.entries({ file, source, target })) form.append(name, value);
  try {
    const { translatedFileUrl } = await upload("/translate_file", form);
    const url = new URL(translatedFileUrl, location.href);
    const name = decodeURIComponent(url.pathname.split("/").at(-1));
    const close = html("button", { type: "button", click: () => { result.hidden = true; } }, "Close");
    result.replaceChildren(`${file.name} is translated: `, html("a", { href: url.pathname + url.search, download: name }, `Download ${name}`), " ", close);
  } catch (error) {
    result.hidden = true;
    showError(error);
  }
}

export function setUpFiles() {
  const [input, card] = [byId("file"), byId("translator")];
  byId("open-file").addEventListener("click", () => {
    input.accept = [".txt", ".md", ...(page.settings.files ? page.settings.fileFormats : [])].join(",");
    input.click();
  });
  input.addEventListener("change", () => {
    if (input.files[0]) openFile(input.files[0]);
    input.value = "";
  });
  const hasFile = (event) => event.dataTransfer?.types.includes("Files");
  card.addEventListener("dragover", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    card.classList.add("dropping");
  });
  card.addEventListener("dragleave", (event) => card.contains(event.relatedTarget) || card.classList.remove("dropping"));
  card.addEventListener("drop", (event) => {
    card.classList.remove("dropping");
    if (!hasFile(event)) return;
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
}
