// The documents of the collection: a list to search, open and delete, and files that are dropped on
// the page or chosen, each of which is sent by itself, and its result named.

import { Refused, send } from "./stream.js";
import { element, words } from "./elements.js";

const PAGE = 50; // documents that are fetched at once
const PAUSE_MS = 200; // after a key, before the list is fetched again

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// `options` gives the collection and the key, is told of each new collection and refusal, and shows a
// document.
export function listenForDocuments({ collection, key, changed, refused, open }) {
  const byId = (id) => document.getElementById(id);
  let sending = Promise.resolve(); // one file after the other
  let waiting = 0;

  function add(files) {
    byId("documents").open = files.length > 0 || byId("documents").open;
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
    const rows = byId("file-list").children.length;
    const bad = byId("file-list").getElementsByClassName("bad").length;
    const problems = bad ? ` ${bad} of ${rows} ${bad === 1 ? "has" : "have"} problems.` : "";
    byId("files-told").textContent = `${waiting ? `${counted(waiting, "file")} to go.` : "All files are done."}${problems}`;
    if (!waiting) list();
  }

  const pathOf = (name) => `collections/${encodeURIComponent(name)}`;

  function failed(place, error) {
    byId(place).textContent = error instanceof Refused ? error.problem.detail : "The server cannot be reached.";
    if (error instanceof Refused) refused(error);
  }

  let listing = 0; // the newest list that was asked for
  let next = null;

  async function list(more = false) {
    if (!byId("documents").open) return;
    const own = (listing += 1);
    const at = pathOf(collection());
    const query = new URLSearchParams({ limit: PAGE, text: byId("document-text").value.trim(), after: more ? next : "" });
    try {
      const found = await send("GET", `${at}/documents?${query}`, key());
      if (own !== listing) return;
      const rows = found.documents.map((each) => listed(each, at));
      if (more) byId("document-list").append(...rows);
      else byId("document-list").replaceChildren(...rows);
      next = found.next;
      const shown = counted(byId("document-list").children.length, "document");
      byId("documents-told").textContent = next ? `The first ${shown}` : shown;
    } catch (error) {
      if (own !== listing) return;
      byId("document-list").replaceChildren();
      next = null;
      if (error instanceof Refused && error.status === 404) byId("documents-told").textContent = "This collection does not exist yet. Add files to create it.";
      else failed("documents-told", error);
    }
    byId("document-more").hidden = next === null;
  }

  function listed({ id, title, passages }, at) {
    const name = words("button", "name link", title || id);
    name.type = "button";
    name.addEventListener("click", () => open(collection(), id));
    const row = element("li", "file", name, words("span", "hint", `${title ? `${id}, ` : ""}${counted(passages, "passage")}`));
    const button = element("button", "", "Delete");
    button.type = "button";
    button.ariaLabel = `Delete the document ${id}`;
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await send("DELETE", `${at}/documents/${encodeURIComponent(id)}`, key());
        row.remove();
        byId("documents-told").textContent = `${id} is deleted.`;
      } catch (error) {
        button.disabled = false;
        failed("documents-told", error);
      }
    });
    row.append(button);
    return row;
  }

  async function sendOne(file, row, name) {
    const at = pathOf(name);
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
      const query = new URLSearchParams({ file, limit: 1_000 });
      for (let found; found?.next !== null;) {
        found = await send("GET", `${at}/documents?${query}`, key());
        for (const { id } of found.documents) await send("DELETE", `${at}/documents/${encodeURIComponent(id)}`, key());
      }
      row.remove();
      byId("files-told").textContent = `${file} is deleted.`;
      list();
    } catch (error) {
      button.disabled = false;
      failed("files-told", error);
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
  byId("documents").addEventListener("toggle", () => list());
  byId("collection").addEventListener("change", () => list());
  byId("document-more").addEventListener("click", () => list(true));
  let pause = 0;
  byId("document-text").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(list, PAUSE_MS);
  });
  byId("files").addEventListener("change", () => {
    add(byId("files").files);
    byId("files").value = "";
  });
}
