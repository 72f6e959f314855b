// Draws a run. Every text is set as text, never as markup.
//
// A view draws a run's changes when it is told to, which is once a frame: the question as a whole,
// and the cards of the steps that changed.

import {
  DONE, FAILED, RUNNING, answerOf, asksAnew, cited, costOf, judged, laneOf, split,
} from "./state.js";
import { element, tail, words } from "./elements.js";
import { heatMap, standingHeat } from "./heat.js";

const PREVIEW = 220; // characters of a passage in the timeline
const SLICE_MS = 8; // of drawing in a frame
const TICK_MS = 100; // between two drawings of the time while no event comes
const KINDS = {
  condense: "Conversation", route: "Route", decompose: "Split", ending: "Enough?",
  retrieve: "Search", merge: "Merge", answer: "Answer",
};
const STOPPED = {
  answer: "answer", max_steps: "the step limit", deadline: "the time limit", budget: "the budget",
};
const WITHDRAWN = {
  trigger: "it was uncertain and triggered a search", restart: "it is written again",
  repair: "it was replaced or rejected", unsupported: "no passage supports it",
};

const pageOf = ({ page }) => (Number.isInteger(page) ? [element("span", "label", `, page ${page}`)] : []);

// A link to where a passage comes from. Other schemes than those of the web are no links.
function linkTo(url) {
  if (!url || !URL.canParse(url) || !/^https?:$/u.test(new URL(url).protocol)) return [];
  const link = element("a", "", url);
  link.href = url;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  return [" ", link];
}

export function seconds(ms) {
  if (ms < 995) return `${Math.round(ms)} ms`;
  return ms < 9_950 ? `${(ms / 1_000).toFixed(1)} s` : `${Math.round(ms / 1_000)} s`;
}

const number = (value) => Number(value).toLocaleString("en");
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most)} …` : text);

export class View {
  // `open(passage, quote)` shows a passage, `download()` saves the trace, `again()` asks once more.
  // `rate(words)` sends feedback, and `rated()` says whether the server keeps it.
  constructor(run, title, { open, download, again, rate, rated }) {
    this.run = run;
    this.open = open;
    this.since = this.tickedAt = performance.now();
    this.cards = new Map();
    this.lanes = new Map();
    this.status = element("span", "status");
    this.problem = element("div", "problem");
    this.problem.hidden = true;
    this.answer = words("p", "answer", "");
    this.doubt = element("p", "doubt", "");
    this.doubt.hidden = true;
    this.citations = element("ol", "citations");
    this.uncited = element("p", "hint", "No passage is cited for this answer.");
    this.uncited.hidden = true;
    this.cost = element("dl", "cost");
    this.flow = element("div", "flow");
    this.save = buttonTo("Download the trace", download);
    this.again = buttonTo("Ask again", again);
    this.rated = rated;
    this.rating = ratingForm(rate);
    this.unfolded = false;
    this.fold = buttonTo("Unfold all steps", () => this.unfold());
    const name = element("h2", "", title, " ", this.status);
    this.element = element(
      "section", "run", name, this.problem, this.answer, this.doubt, this.citations, this.uncited, this.rating, this.cost, this.save,
      element("div", "steps", element("h3", "", "Steps"), this.fold), this.flow,
    );
    this.element.setAttribute("aria-label", title);
  }

  // The answered question as an earlier turn of the conversation, its steps folded.
  turn() {
    const steps = element("details", "", element("summary", "", "Steps"), this.cost, this.save, this.flow);
    return element(
      "article", "turn", words("h3", "", this.run.request.question), this.answer, this.doubt, this.citations, steps,
    );
  }

  // What does not fit into the time of a frame is drawn in the next.
  draw() {
    const { run } = this;
    const since = performance.now();
    if (run.changed.delete("run")) this.drawRun();
    else if (run.phase === RUNNING && since - this.tickedAt > TICK_MS) this.drawCost();
    if (!run.changed.size) return;
    for (const id of run.changed) {
      run.changed.delete(id);
      if (run.steps.has(id)) this.drawStep(run.steps.get(id));
      if (performance.now() - since > SLICE_MS) return;
    }
  }

  drawRun() {
    const { run } = this;
    this.element.dataset.phase = run.phase;
    this.status.textContent = statusOf(run);
    this.problem.hidden = !run.problem;
    if (run.problem) {
      this.problem.replaceChildren(
        element("strong", "", run.problem.title), words("p", "", run.problem.detail ?? ""), this.again,
      );
    }
    const answer = answerOf(run);
    if (this.answer.textContent !== answer) this.answer.textContent = answer;
    this.answer.classList.toggle("none", run.body?.answered === false);
    this.doubt.textContent = doubtOf(run);
    this.doubt.hidden = !this.doubt.textContent;
    this.rating.hidden = run.phase !== DONE || !run.body || !this.rated();
    this.drawCitations();
    this.drawCost();
    this.save.hidden = !run.trace.length;
  }

  drawCitations() {
    const found = this.run.stop?.citations ?? [];
    this.uncited.hidden = !this.run.body?.answered || found.length > 0 || !this.doubt.hidden;
    if (this.citations.childElementCount === found.length) return;
    this.citations.replaceChildren(...found.map((each) => this.citation(each)));
  }

  citation(each) {
    const passage = cited(this.run, each);
    const button = element("button", "citation");
    button.type = "button";
    button.append(words("strong", "", each.title || each.passage_id), ...pageOf(each), " ", words("q", "", each.text));
    button.addEventListener("click", () => this.open(passage ?? each, passage ? each : null));
    return element("li", "", button);
  }

  drawCost() {
    this.tickedAt = performance.now();
    const waited = this.run.phase === RUNNING ? this.tickedAt - this.since : 0;
    const { usage, ms, stoppedBy, degraded } = costOf(this.run, waited);
    this.flow.style.setProperty("--total", String(Math.max(ms, 1)));
    const rows = [
      ["Time", seconds(ms)],
      ["Searches", number(usage.retrievals)],
      ["LLM calls", number(usage.llm_calls)],
      ["Prompt + completion tokens", `${number(usage.prompt_tokens)} + ${number(usage.completion_tokens)}`],
    ];
    const { supported, confidence } = this.run.stop ?? {};
    if (typeof supported === "boolean") rows.push(["Supported by passages", supported ? "yes" : "no"]);
    if (typeof confidence === "number") rows.push(["Confidence", `${Math.round(confidence * 100)} %`]);
    if (stoppedBy) rows.push(["Stopped by", STOPPED[stoppedBy] ?? stoppedBy]);
    if (degraded.length) rows.push(["Unavailable", degraded.join(", ")]);
    if (this.cost.childElementCount !== rows.length) {
      this.cost.replaceChildren(
        ...rows.map(([name]) => element("div", "", element("dt", "", name), element("dd", ""))),
      );
    }
    rows.forEach(([name, value], place) => {
      const [term, told] = this.cost.children[place].children;
      if (term.textContent !== name) term.textContent = name;
      if (told.textContent !== value) told.textContent = value;
    });
  }

  drawStep(step) {
    let card = this.cards.get(step.id);
    if (!card) {
      card = newCard(step, this.unfolded);
      this.cards.set(step.id, card);
      this.placeOf(step).append(card.element);
    }
    const { run } = this;
    const open = step.to === null && run.phase === RUNNING;
    card.element.dataset.open = String(open);
    card.title.textContent = KINDS[step.kind] ?? step.kind;
    const gist = gistOf(step, run);
    if (card.gist.textContent !== gist) card.gist.textContent = gist;
    card.time.textContent = open ? "running" : step.to === null ? "not finished" : seconds(step.to - step.from);
    card.element.style.setProperty("--from", String(step.from));
    card.element.style.setProperty("--to", String(step.to ?? Math.max(run.ms, step.from + 1)));
    for (const [name, draw] of Object.entries(PARTS)) {
      this.drawPart(card, name, () => draw(step, run, this.open), signatureOf[name](step, run));
    }
  }

  // Unfolds or folds the steps there are and those to come.
  unfold() {
    this.unfolded = !this.unfolded;
    this.fold.textContent = this.unfolded ? "Fold all steps" : "Unfold all steps";
    for (const card of this.cards.values()) card.element.open = this.unfolded;
  }

  // A part of a card is made again only where what it shows has changed.
  drawPart(card, name, draw, signature) {
    if (card.drawn[name] === signature) return;
    card.drawn[name] = signature;
    const made = draw();
    card.parts[name].replaceChildren(...made);
    card.parts[name].hidden = !made.length;
  }

  // Where a step stands: in the one column, or in the lane of its part.
  placeOf(step) {
    const lane = laneOf(step.id);
    if (!lane) return this.flow;
    const name = `${lane.group}.${lane.part}`;
    if (!this.lanes.has(name)) this.addLane(lane, name);
    return this.lanes.get(name);
  }

  addLane({ group, part }, name) {
    let lanes = this.lanes.get(group);
    if (!lanes) {
      lanes = element("div", "lanes");
      this.lanes.set(group, lanes);
      this.flow.append(lanes);
    }
    const made = words("section", "lane", "");
    const question = this.run.parts[part - 1] ?? "";
    made.append(words("h4", "", `Part ${part}${question && `: ${question}`}`));
    made.setAttribute("aria-label", `Part ${part}`);
    made.dataset.part = String(part);
    const after = [...lanes.children].find((other) => Number(other.dataset.part) > part);
    lanes.insertBefore(made, after ?? null);
    this.lanes.set(name, made);
  }
}

function buttonTo(text, act) {
  const made = element("button", "", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// Whether the answer is right, and if not what is wrong with it and what would be right.
function ratingForm(rate) {
  const told = element("span", "hint", "");
  told.setAttribute("role", "status");
  const form = element("form", "rating");
  const field = (name, label) => {
    const input = element("input", "");
    input.name = name;
    input.maxLength = 2_000;
    return element("label", "", label, input);
  };
  const more = element("div", "choices", field("reason", "What is wrong?"), field("expected", "The right answer"), element("button", "", "Send"));
  more.hidden = true;
  const give = async (verdict) => {
    const { reason, expected } = form.elements;
    told.textContent = await rate({ verdict, reason: reason.value, expected: expected.value });
  };
  const thumb = (verdict, sign, label) => {
    const button = buttonTo(sign, () => {
      for (const each of form.querySelectorAll("[aria-pressed]")) each.ariaPressed = String(each === button);
      more.hidden = verdict === "up";
      give(verdict);
    });
    button.ariaLabel = label;
    button.ariaPressed = "false";
    return button;
  };
  form.append(thumb("up", "Right", "The answer is right"), thumb("down", "Wrong", "The answer is wrong"), told, more);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    more.hidden = true;
    give("down");
  });
  form.hidden = true;
  return form;
}

function statusOf(run) {
  if (run.note) return run.note;
  if (run.phase === FAILED) return "failed";
  const route = run.route;
  if (!route) return run.phase === RUNNING ? "waiting" : "";
  const told = `route ${route.route}, loop ${route.loop}`;
  return run.phase === DONE ? told : `${told} – running`;
}

// Why an answer is not to be relied on, if so.
function doubtOf({ body, stop, steps }) {
  if (!body?.answered) return "";
  const flags = [...steps.values()].flatMap((step) => step.flags);
  if (flags.includes("closed_book")) return "From the model's own knowledge: no passage was used.";
  if (stop?.supported === false) return "No passage supports this answer.";
  return flags.includes("conflict") ? "Passages contradict each other: see the steps." : "";
}

// A step in one line: what it found, or else what it asks.
function gistOf(step, run) {
  const route = step.kind === "route" && run.route;
  if (route) {
    const sure = route.confidence === null ? "" : `, confidence ${Math.round(route.confidence * 100)} %`;
    return `${route.route}, chosen by ${route.by}${sure}`;
  }
  const query = step.queries.at(-1)?.query;
  const found = query === undefined ? [] : [counted(step.passages.length, "passage")];
  return [query ?? step.question ?? "", ...found, step.answer ?? ""].filter(Boolean).join(" · ").slice(0, PREVIEW);
}

function newCard(step, open) {
  const made = element("details", "step");
  made.open = open;
  const title = element("span", "kind");
  const gist = words("span", "gist", "");
  const time = element("span", "time");
  const bar = element("div", "bar", element("div", "span"));
  bar.setAttribute("aria-hidden", "true");
  made.append(element("summary", "", element("h4", "", `${step.id} `, title, " ", gist, " ", time), bar));
  const parts = {};
  for (const name of Object.keys(PARTS)) {
    parts[name] = element("div", name);
    parts[name].hidden = true;
    made.append(parts[name]);
  }
  return { element: made, title, gist, time, parts, drawn: {} };
}

// What a card shows, in order. Each returns elements.
const PARTS = {
  asked: (step, run) => (step.question && asksAnew(run, step) ? [words("p", "", step.question)] : []),
  thought: (step) => (step.thought ? [words("p", "", tail(step.thought))] : []),
  split: (step) => (step.parts.length > 1 ? [list(step.parts)] : []),
  trigger: (step, run) => (step.trigger ? heatMap(step.trigger, run) : []),
  standing: (step) => (step.standing ? standingHeat(step.standing) : []),
  withdrawn: (step) => step.withdrawn.map(withdrawnDraft),
  draft: (step) => (isNews(step) ? [words("p", "", tail(step.written.draft))] : []),
  queries: (step) => step.queries.map(queryLine),
  passages: (step, run, open) => passageList(step, open),
  ended: (step) => endOf(step),
};

// What a part depends on, as short as can be.
const signatureOf = {
  asked: (step) => step.question,
  split: (step) => step.parts.length,
  thought: (step) => step.thought.length,
  trigger: (step) => step.trigger,
  standing: (step) => step.standing,
  withdrawn: (step) => step.withdrawn.length,
  draft: (step) => isNews(step) && step.written.draft,
  queries: (step) => step.queries.length,
  passages: (step) => `${step.passages.length} ${step.judged.size} ${step.missing}`,
  ended: (step) => `${step.to} ${step.ending} ${step.written.answer.length}`,
};

// Whether a draft says more than what the step ended with.
function isNews(step) {
  const draft = step.written.draft.trim();
  return draft && draft !== step.answer && draft !== step.thought && draft !== step.standing?.text;
}

function list(texts) {
  return element("ul", "", ...texts.map((text) => words("li", "", text)));
}

function queryLine({ query, retriever }) {
  return element("p", "", element("span", "label", `Query (${retriever})`), " ", words("span", "", query));
}

function withdrawnDraft({ text, reason }) {
  return element(
    "p", "", element("span", "label", `Withdrawn, because ${WITHDRAWN[reason] ?? reason}`), " ",
    words("s", "", tail(text)),
  );
}

function endOf(step) {
  const told = [];
  if (step.ending !== null) {
    told.push(element("p", "", element("span", "label", "Enough to answer"), step.ending ? " yes" : " no"));
  }
  if (step.to === null) return told;
  if (step.answer) {
    told.push(element("p", "result", element("span", "label", "Result"), " ", words("span", "", tail(step.answer))));
  }
  if (step.flags.length) {
    told.push(element("p", "flags", ...step.flags.map((flag) => element("span", "flag", flag.replaceAll("_", " ")))));
  }
  return told;
}

function passageList(step, open) {
  const made = [];
  if (step.missing.length) {
    made.push(element("p", "flags", element("span", "flag", `without ${step.missing.join(", ")}`)));
  }
  if (!step.passages.length) return made;
  const states = step.passages.map((each) => judged(step, each).kept);
  const kept = states.every((each) => each === null) ? "" : `, ${states.filter(Boolean).length} kept`;
  const summary = element("summary", "", `${counted(step.passages.length, "passage")}${kept}`);
  const shown = element("details", "", summary, element(
    "ol", "found", ...step.passages.map((passage) => passageLine(step, passage, open)),
  ));
  shown.open = true;
  return [...made, shown];
}

function judgedAs(kept, reason) {
  if (kept === null) return "not judged yet";
  if (kept) return "kept";
  return `dropped${reason ? `: ${reason}` : ""}`;
}

function passageLine(step, passage, open) {
  const { kept, reason } = judged(step, passage);
  const button = element("button", "passage");
  button.type = "button";
  button.append(
    words("strong", "", passage.title || passage.passage_id), ...pageOf(passage), " ",
    element("span", "label", judgedAs(kept, reason)), " ", words("span", "preview", shortened(passage.text, PREVIEW)),
  );
  button.addEventListener("click", () => open(passage, null));
  return element("li", kept ? "kept" : "dropped", button);
}

// The texts of a document overlap, by a sentence.
function overlap(before, after) {
  let size = Math.min(before.length, after.length);
  while (size && !before.endsWith(after.slice(0, size))) size -= 1;
  return size;
}

// Fills the dialog of a passage; the quoted part is marked. `around` has the texts of its document
// before and after the passage.
export function showPassage(dialog, passage, quote, around = [[], []]) {
  const find = (name) => dialog.querySelector(`#passage-${name}`);
  find("title").textContent = passage.title || passage.passage_id;
  find("source").replaceChildren(passage.passage_id, ...pageOf(passage), ...linkTo(passage.url));
  const text = find("text");
  if (quote) {
    const [before, inside, after] = split(passage.text, quote.start, quote.end);
    text.replaceChildren(before, element("mark", "", inside), after);
  } else {
    text.replaceChildren(passage.text);
  }
  const texts = [...around[0], passage.text, ...around[1]];
  text.prepend(...around[0].map((each, n) => words("p", "context", each.slice(0, each.length - overlap(each, texts[n + 1])))));
  text.append(...around[1].map((each, n) => words("p", "context", each.slice(overlap(texts[around[0].length + n], each)))));
  if (!dialog.open) dialog.showModal();
  text.scrollTop = 0;
  text.querySelector("mark")?.scrollIntoView({ block: "center" });
}
