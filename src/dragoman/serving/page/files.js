// Files that are opened or dropped: plain text becomes the source, other formats are translated by the service.

import { upload } from "./api.js";
import { byId, html } from "./dom.js";
import { DETECT } from "./languages.js";
import { showError, showNotice } from "./notices.js";
import { excessCharacters, replaceSource } from "./source_box.js";
import { page } from "./session.js";

let request = new AbortController();

const isPlainText = (file) => /\.(txt|text)$/i.test(file.name) || (file.type === "text/plain" && !/\.\w+$/.test(file.name));
const extension = (name) => /\.\w+$/.exec(name)?.[0].toLowerCase() ?? "";

/** Translate files: a text in the page, others by the service. */
async function openFiles(files) {
  if (files.length === 1 && isPlainText(files[0])) {
    const text = await files[0].text();
    if (excessCharacters(text) <= 0 || !page.settings.files) {
      replaceSource(text);
      byId("source").blur(); // translates at once; the keyboard of a phone would hide the translation
      if (text.includes("\ufffd")) showNotice(`${files[0].name} is not UTF-8 text: some characters cannot be read.`);
      return;
    }
  }
  const formats = page.settings.fileFormats;
  const unknown = files.find((file) => !page.settings.files || (formats.length && !formats.includes(extension(file.name))));
  if (unknown) showNotice(`${unknown.name} cannot be translated: choose ${page.settings.files ? `one of ${formats.join(", ")}` : "a text file (.txt)"}.`);
  else await translateFiles(files);
}

/** Let the service translate files, one after the other. */
async function translateFiles(files) {
  const [result, list] = [byId("file-result"), html("ul")];
  const close = html("button", { type: "button", click: () => {
    request.abort();
    result.hidden = true;
  } }, "Cancel");
  request.abort();
  request = new AbortController();
  const { signal } = request;
  const { name: run, source, target } = page.panels[0].run;
  const languages = page.state.from === DETECT ? { source: DETECT, target } : { source, target, run };
  result.hidden = false;
  result.replaceChildren(list, close);
  for (const file of files) {
    const line = list.appendChild(html("li", {}, `Translating ${file.name} …`));
    const form = new FormData();
    const preserve = byId("keep-numbers").checked ? "numbers" : "placeholders";
    for (const [name, value] of Object.entries({ file, ...languages, preserve })) form.append(name, value);
    try {
      const { translatedFileUrl } = await upload("/translate_file", form, signal);
      const url = new URL(translatedFileUrl, location.href);
      const name = decodeURIComponent(url.pathname.split("/").at(-1)).replace(/^[^.]*\./, ""); // without the secret before it
      line.replaceChildren(`${file.name} is translated: `, html("a", { href: url.pathname + url.search, download: name }, `Download ${name}`));
    } catch (error) {
      if (signal.aborted) return;
      line.textContent = `${file.name}: ${error.message}`;
      if (error.status === 403) showError(error);
    }
  }
  close.textContent = "Close";
}

export function setUpFiles() {
  const [input, card] = [byId("file"), byId("translator")];
  byId("open-file").addEventListener("click", () => {
    input.accept = [".txt", ".md", ...(page.settings.files ? page.settings.fileFormats : [])].join(",");
    input.click();
  });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) openFiles(files);
  });
  // on the whole page: elsewhere the browser would open the file in its place
  const onDrag = (isOver) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    card.classList.toggle("dropping", isOver);
    if (event.type === "drop" && event.dataTransfer.files.length && !document.querySelector("dialog[open]")) openFiles([...event.dataTransfer.files]);
  };
  document.addEventListener("dragover", onDrag(true));
  document.addEventListener("dragleave", onDrag(false));
  document.addEventListener("drop", onDrag(false));
}
