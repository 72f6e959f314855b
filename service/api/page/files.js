// Files that are dropped on the page or chosen: each is sent by itself, and its result is named.

import { Refused, send } from "./stream.js";
import { element, words } from "./elements.js";

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// `options` gives the collection and the key, and is told of each new collection and refusal.
export function listenForFiles({ collection, key, changed, refused }) {
  const byId = (id) => document.getElementById(id);
  let sending = Promise.resolve(); // one file after the other
  let waiting = 0;

  function add(files) {
    byId("add-files").open = files.length > 0 || byId("add-files").open;
    for (const file of files) {
      const row = element("li", "file", words("span", "name", file.name), element("span", "hint", "waiting"));
      byId("file-list").append(row);
      waiting += 1;
      tell();
      sending = sending.then(() => sendOne(file, row, collection())).finally(() => {
        waiting -= 1;
        tell();
      });
    }
  }

  function tell() {
    byId("files-told").textContent = waiting ? `${counted(waiting, "file")} to go` : "All files are done.";
  }

  async function sendOne(file, row, name) {
    const at = `collections/${encodeURIComponent(name)}`;
    const body = new FormData();
    body.append("files", file);
    row.lastChild.textContent = "reading …";
    try {
      let found;
      try {
        found = await send("POST", `${at}/files`, key(), body);
      } catch (error) {
        if (!(error instanceof Refused) || error.status !== 404) throw error;
        await send("PUT", at, key()); // the collection does not exist yet
        found = await send("POST", `${at}/files`, key(), body);
        changed();
      }
      show(row, found.files[0], at);
    } catch (error) {
      row.classList.add("bad");
      row.lastChild.textContent = error instanceof Refused ? error.problem.detail : "The server cannot be reached, or the file cannot be read.";
      if (error instanceof Refused) refused(error);
    }
  }

  function show(row, { file, indexed, unchanged, problems }, at) {
    const told = [counted(indexed + unchanged, "document") + (indexed ? "" : " unchanged"), ...problems];
    if (!(indexed + unchanged)) told.shift();
    row.classList.toggle("bad", problems.length > 0);
    row.lastChild.replaceWith(words("span", "hint", told.join("; ") || "no documents"));
    if (!(indexed + unchanged)) return;
    const button = element("button", "", "Delete");
    button.type = "button";
    button.ariaLabel = `Delete ${file}`;
    button.addEventListener("click", () => remove(row, file, at, button));
    row.append(button);
  }

  async function remove(row, file, at, button) {
    button.disabled = true;
    try {
      const { ids } = await send("GET", `${at}/documents?file=${encodeURIComponent(file)}`, key());
      for (const id of ids) await send("DELETE", `${at}/documents/${encodeURIComponent(id)}`, key());
      row.remove();
      byId("files-told").textContent = `${file} is deleted.`;
    } catch (error) {
      button.disabled = false;
      byId("files-told").textContent = error instanceof Refused ? error.problem.detail : "The server cannot be reached.";
      if (error instanceof Refused) refused(error);
    }
  }

  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  window.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault(); // else the browser opens the file
    document.body.classList.add("dropping");
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  window.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    add(event.dataTransfer.files);
  });
  byId("files").addEventListener("change", () => {
    add(byId("files").files);
    byId("files").value = "";
  });
}
