// The page: the form, the key, the link, and one or two questions in progress.

import { DONE, FAILED, RUNNING, answerOf, fail, fold, newRun, notice, traceOf } from "./state.js";
import { Refused, ask, getFile, getJson, send } from "./stream.js";
import { View, showPassage } from "./draw.js";
import { element } from "./elements.js";
import { listenForDocuments } from "./files.js";

const EXAMPLES = [
  "Who directed Laserblast?",
  "When was Carl Oscar Borg born and when did Carl Oscar Borg die?",
  "When was the writer of Billy Elliot born?",
  "Which film came out first, La Boum 2 or La Carapate?",
];
const SAMPLE = "sample"; // the collection that the examples are about
const CHOICES = ["route", "loop", "retriever", "collection"];
const NUMBERS = ["top_k", "max_steps", "timeout_s"];
const KEY = "revelator-key";
const MOST_TURNS = 10; // questions with their answers that go with the next question
const LONGEST_HISTORY = 16_000; // characters of them
const SPEAK_MS = 1_500; // at least, between two announcements

const byId = (id) => document.getElementById(id);
const fields = Object.fromEntries([...CHOICES, ...NUMBERS, "question", "compare"].map((id) => [id, byId(id)]));
let current = []; // the runs on the page, each with its view
let stopping = null; // stops the runs in progress
let before = null; // the collection that was chosen before an example, which is about the sample
let keepsFiles = false; // whether the server keeps originals and feedback
let turns = []; // of the conversation, the newest last: what a follow-up question may refer to

// The key is kept for this tab only.
const keyOf = () => sessionStorage.getItem(KEY) ?? "";

function requestOf(loop) {
  const request = { question: fields.question.value.trim() };
  for (const name of CHOICES) if (fields[name].value) request[name] = fields[name].value;
  for (const name of NUMBERS) if (fields[name].value) request[name] = Number(fields[name].value);
  if (loop) request.loop = loop;
  if (turns.length) request.history = historyOf();
  return request;
}

function historyOf() {
  const told = turns.slice(-MOST_TURNS).flatMap(({ run }) => [
    { role: "user", text: run.request.question },
    { role: "assistant", text: answerOf(run) },
  ]);
  while (told.reduce((size, { text }) => size + text.length, 0) > LONGEST_HISTORY) told.shift();
  return told;
}

// The answer on the page becomes an earlier turn, unless the same question is asked once more.
function keepTurn() {
  const [answered] = current;
  const again = answered?.run.request.question === fields.question.value.trim();
  if (answered?.run.phase === DONE && !again) {
    turns.push(answered);
    byId("earlier").prepend(answered.view.turn());
  }
  showTurns();
}

function showTurns() {
  byId("earlier").hidden = !turns.length;
  byId("examples").hidden = current.length > 0;
  byId("fresh").hidden = !turns.length && !current.some(({ run }) => run.phase === DONE);
}

function startAnew() {
  turns = [];
  current = [];
  byId("earlier").replaceChildren();
  byId("results").replaceChildren();
  showTurns();
  fields.question.value = "";
  fields.question.focus();
}

async function submit(event) {
  event?.preventDefault();
  if (!fields.question.value.trim() || stopping) return;
  const loop = fields.loop.value;
  const other = fields.compare.value;
  rememberLink();
  keepTurn();
  byId("examples").hidden = true;
  current = other
    ? [loop || "default", other].map((each) => begin(requestOf(each), `Loop ${each}`))
    : [begin(requestOf(loop), "Answer")];
  const results = byId("results");
  results.replaceChildren(...current.map(({ view }) => view.element));
  results.dataset.runs = String(current.length);
  if (results.getBoundingClientRect().top > window.innerHeight / 2) results.scrollIntoView();
  await answerAll(current);
}

// A failed question once more, in its place.
async function askAgain(run, title) {
  const place = current.findIndex((each) => each.run === run);
  if (stopping || place < 0) return;
  const asked = begin(run.request, title);
  current[place].view.element.replaceWith(asked.view.element);
  current[place] = asked;
  await answerAll([asked]);
}

async function answerAll(asked) {
  byId("problem").hidden = true;
  stopping = new AbortController();
  setBusy(true);
  schedule();
  await Promise.all(asked.map(({ run }) => answer(run, stopping.signal)));
  stopping = null;
  setBusy(false);
  showTurns();
  speakEnd();
  schedule();
}

function begin(request, title) {
  const run = newRun(request);
  const view = new View(run, title, {
    open: (passage, quote) => {
      showPassage(byId("passage-dialog"), passage, quote);
      offerOriginal(fields.collection.value || "default", passage);
    },
    download: () => download(run),
    again: () => askAgain(run, title),
    rate: (given) => rate(run, given),
    rated: () => keepsFiles,
  });
  return { run, view };
}

// Sends what the reader thinks of an answer, and returns what to tell them.
async function rate(run, given) {
  try {
    const body = new Blob([JSON.stringify({ answer_id: run.body.id, ...given })], { type: "application/json" });
    await send("POST", "feedback", keyOf(), body);
    return "Thank you, this is kept.";
  } catch (error) {
    return error instanceof Refused ? error.problem.detail : "The server cannot be reached.";
  }
}

async function answer(run, signal) {
  try {
    await ask(run.request, keyOf(), {
      signal,
      take: (name, data) => fold(run, name, data),
      tell: (text) => notice(run, text),
    });
  } catch (error) {
    if (signal.aborted) return fail(run, { title: "Stopped", detail: "You stopped this question." });
    if (!(error instanceof Refused)) throw error;
    fail(run, error.problem);
    if (aboutKey(error)) askForKey(reasonOf(error));
  }
  return undefined;
}

let scheduled = false;

function schedule() {
  if (!scheduled) requestAnimationFrame(frame);
  scheduled = true;
}

function frame() {
  scheduled = false;
  for (const { view } of current) view.draw();
  speakProgress();
  if (current.some(({ run }) => run.phase === RUNNING || run.changed.size)) schedule();
}

function setBusy(busy) {
  byId("submit").disabled = busy;
  byId("cancel").hidden = !busy;
  byId("results").setAttribute("aria-busy", String(busy));
}

// What a screen reader says: each search, now and then, and the answer.
let spokenAt = 0;
let spokenQuery = "";

function speak(text) {
  spokenAt = performance.now();
  byId("spoken").textContent = text;
}

function speakProgress() {
  if (performance.now() - spokenAt < SPEAK_MS) return;
  const run = current.find((each) => each.run.phase === RUNNING)?.run;
  const queries = run ? [...run.steps.values()].flatMap((step) => step.queries) : [];
  const query = queries.at(-1)?.query;
  if (query && query !== spokenQuery) {
    spokenQuery = query;
    speak(`Searching: ${query}`);
  }
}

function speakEnd() {
  const told = current.map(({ run }) => (run.phase === FAILED ? run.problem.title : `Answer: ${answerOf(run)}`));
  spokenQuery = "";
  speak(told.join(". "));
}

function download(run) {
  const url = URL.createObjectURL(new Blob(traceOf(run), { type: "application/json" }));
  const link = element("a", "");
  link.href = url;
  link.download = `revelator-${run.id ?? "trace"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// The link holds question and options. Opening it fills the form and does not ask: that is the
// reader's decision, because it costs.
function linkOf() {
  const values = new URLSearchParams();
  for (const [name, field] of Object.entries(fields)) if (field.value) values.set(name, field.value.trim());
  return `#${values}`;
}

function rememberLink() {
  const link = byId("permalink");
  link.href = linkOf();
  link.hidden = false;
  history.replaceState(null, "", linkOf());
}

function readLink() {
  const values = new URLSearchParams(location.hash.slice(1));
  if (values.has("passage")) openPassage(values);
  if (!values.has("question")) return;
  for (const [name, field] of Object.entries(fields)) {
    const value = values.get(name) ?? "";
    if (field instanceof HTMLSelectElement && value && !hasOption(field, value)) field.add(new Option(value, value));
    field.value = value;
  }
  byId("submit").focus();
}

const pathOf = (collection, name) => `collections/${encodeURIComponent(collection)}/documents/${encodeURIComponent(name)}`;

const documentOf = (passageId) => passageId.replace(/#\d+$/u, ""); // one of several passages numbers them

let openOriginal = null; // of the passage that is shown, or null

// Offers the file that a passage is from, if the server has kept it.
async function offerOriginal(collection, passage, known) {
  const at = pathOf(collection, documentOf(passage.passage_id));
  const button = byId("passage-file");
  button.hidden = true;
  const own = (openOriginal = () => showOriginal(at, passage));
  const found = known ?? (await getJson(at, keyOf()).catch(() => null));
  if (own === openOriginal) button.hidden = !found?.original;
}

// A PDF is shown at its page by the browser, in a tab of its own; other files are saved. A PDF alone
// is given a URL of this page's origin, since a file of another kind could act as the page.
async function showOriginal(at, passage) {
  const pdf = /\.pdf(#|$)/iu.test(documentOf(passage.passage_id));
  const link = element("a", "");
  const page = Number.isInteger(passage.page) ? `#page=${passage.page}` : "";
  try {
    const url = keyOf() ? await getFile(`${at}/file`, keyOf(), pdf ? "application/pdf" : "application/octet-stream") : `${at}/file`;
    link.href = `${url}${pdf ? page : ""}`;
    if (pdf) link.target = "_blank";
    else link.download = documentOf(passage.passage_id).replace(/#.*$/u, "");
    link.rel = "noopener";
    link.click();
    if (keyOf()) setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    if (!(error instanceof Refused)) return showProblem("The server cannot be reached", "Reload the page.");
    showProblem(error.problem.title, error.problem.detail);
  }
  return undefined;
}

// A citation elsewhere links to its passage, which is shown in its document.
async function openPassage(values) {
  const id = values.get("passage");
  const quote = { start: Number(values.get("start")), end: Number(values.get("end")) };
  return openDocument(values.get("collection") ?? "", documentOf(id), id, quote);
}

// A document from its first passage on, or at the passage `id` with the quoted sentence marked.
async function openDocument(collection, name, id = null, quote = null) {
  try {
    const found = await getJson(pathOf(collection, name), keyOf());
    const { title, metadata, passages } = found;
    const place = id === null ? 0 : passages.findIndex((each) => each.passage_id === id);
    if (place < 0) return showProblem("The passage does not exist", "Its document was changed.");
    const texts = passages.map((each) => each.text);
    const passage = { ...metadata, title, passage_id: id ?? name, text: texts[place] };
    showPassage(byId("passage-dialog"), passage, quote, [texts.slice(0, place), texts.slice(place + 1)]);
    offerOriginal(collection, passage, found);
  } catch (error) {
    if (!(error instanceof Refused)) return showProblem("The server cannot be reached", "Reload the page.");
    if (aboutKey(error)) return askForKey(reasonOf(error));
    showProblem(error.problem.title, error.problem.detail);
  }
  return undefined;
}

const hasOption = (select, value) => [...select.options].some((option) => option.value === value);

function fillSelect(select, values) {
  const chosen = select.value;
  for (const value of values) if (!hasOption(select, value)) select.add(new Option(value, value));
  select.value = chosen;
}

// Loops, routes and retrievers are those of the API's own description.
async function learnFields() {
  const schema = await getJson("openapi.json", "");
  const { properties } = schema.components.schemas.AnswerRequest;
  const valuesOf = (name) => (properties[name].enum ?? []).filter((value) => value !== properties[name].default);
  for (const name of ["route", "loop", "retriever"]) fillSelect(fields[name], valuesOf(name));
  fillSelect(fields.compare, properties.loop.enum ?? []);
}

async function learnCollections() {
  try {
    const { collections, keeps_files: keeps } = await getJson("collections", keyOf());
    keepsFiles = keeps;
    for (const { view } of current) view.drawRun();
    fillSelect(fields.collection, collections.map((each) => each.name));
  } catch (error) {
    if (!(error instanceof Refused)) return showProblem("The server cannot be reached", "Reload the page.");
    if (aboutKey(error)) return askForKey(reasonOf(error));
    if (error.status !== 404) showProblem(error.problem.title, error.problem.detail);
  }
  return undefined;
}

function showProblem(title, detail) {
  const place = byId("problem");
  place.textContent = `${title}. ${detail}`;
  place.hidden = false;
}

const aboutKey = (error) => error.status === 401 || error.problem.type.endsWith(":key-refused");

const lacksKey = (error) => error.problem.type.endsWith(":key-missing");

const reasonOf = (error) => (lacksKey(error) ? "This server requires a key." : error.problem.detail);

function askForKey(reason) {
  const dialog = byId("key-dialog");
  byId("key-reason").textContent = `${reason} The key is kept in this tab only and is removed when the tab is closed.`.trim();
  byId("key").value = "";
  if (!dialog.open) dialog.showModal();
}

function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  byId("key-dialog").close();
  byId("problem").hidden = true;
  learnCollections();
  if (location.hash.startsWith("#passage=")) readLink();
}

function addExamples() {
  byId("examples").append(...EXAMPLES.map((text) => {
    const button = element("button", "example", text);
    button.type = "button";
    button.addEventListener("click", () => {
      if (!stopping) startAnew();
      before ??= fields.collection.value;
      fields.question.value = text;
      if (hasOption(fields.collection, SAMPLE)) fields.collection.value = SAMPLE;
      fields.question.focus();
    });
    return button;
  }));
}

function listen() {
  byId("ask").addEventListener("submit", submit);
  fields.question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  fields.question.addEventListener("input", () => {
    if (before !== null) fields.collection.value = before; // a question of one's own
    before = null;
  });
  fields.collection.addEventListener("change", () => {
    before = null;
  });
  byId("cancel").addEventListener("click", () => stopping?.abort());
  byId("fresh").addEventListener("click", () => stopping || startAnew());
  byId("key-button").addEventListener("click", () => askForKey(""));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value.trim());
  });
  byId("key-forget").addEventListener("click", () => useKey(""));
  byId("key-close").addEventListener("click", () => byId("key-dialog").close());
  byId("passage-file").addEventListener("click", () => openOriginal?.());
  byId("passage-close").addEventListener("click", () => byId("passage-dialog").close());
  window.addEventListener("hashchange", readLink);
  listenForDocuments({
    collection: () => fields.collection.value || "default",
    key: keyOf,
    changed: learnCollections,
    refused: (error) => aboutKey(error) && askForKey(reasonOf(error)),
    open: (collection, id) => openDocument(collection, id),
  });
}

addExamples();
listen();
readLink();
learnCollections();
learnFields().catch(() => {}); // the form asks by the defaults

export { DONE, current };
