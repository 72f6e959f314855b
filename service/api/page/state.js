// What the page knows of one question: events in, a plain object out. No document, no network.
//
// `fold` takes the events of `POST /answer/stream` in order. `run.changed` tells what to draw
// again: "run" for the question as a whole, else the ids of steps. Texts and the trace have upper
// limits, so that no stream can fill the browser's memory.

export const LONGEST_TEXT = 200_000; // characters of one draft, answer or thought
export const LARGEST_TRACE = 32_000_000; // characters of all kept events
export const MOST_STEPS = 2_000;
const MOST_WITHDRAWN = 20; // withdrawn drafts kept of a step

export const RUNNING = "running", DONE = "done", FAILED = "failed";

export function newRun(request) {
  return {
    request, phase: RUNNING, ended: false, id: null, seq: -1, ms: 0, note: "",
    route: null, parts: [], steps: new Map(), stop: null, body: null, problem: null,
    trace: [], traceSize: 0, traceCut: false, changed: new Set(["run"]),
  };
}

// One entry for each type of event. The tests compare them with the types of the service.
export const FOLDS = {
  start(run, event) {
    run.id = event.id;
  },
  route(run, event) {
    run.route = event;
  },
  decomposition(run, event) {
    run.parts = event.questions;
    touched(run, event).parts = event.questions;
  },
  step(run, event) {
    const step = touched(run, event);
    step.kind = event.kind;
    step.question = event.question;
    step.from = event.ms;
  },
  step_end(run, event) {
    const step = touched(run, event);
    step.to = event.ms;
    step.answer = event.answer;
    step.flags = event.flags;
    step.usage = event.usage;
  },
  query(run, event) {
    touched(run, event).queries.push({ query: event.query, retriever: event.retriever });
  },
  passages(run, event) {
    const step = touched(run, event);
    step.passages = event.passages;
    step.missing = event.missing;
  },
  judgement(run, event) {
    const step = touched(run, event);
    if (event.passage_id != null) step.judged.set(event.passage_id, event);
    if (event.ending != null) step.ending = event.ending;
  },
  thought(run, event) {
    const step = touched(run, event);
    if (event.words?.length) step.standing = event;
    else step.thought = limited(step.thought ? `${step.thought}\n${event.text}` : event.text);
  },
  trigger(run, event) {
    touched(run, event).trigger = event;
  },
  token(run, event) {
    const step = touched(run, event);
    step.written[event.role] = limited(step.written[event.role] + event.text);
  },
  withdraw(run, event) {
    const step = touched(run, event);
    const text = step.written[event.role];
    step.written[event.role] = "";
    if (text && step.withdrawn.length < MOST_WITHDRAWN) {
      step.withdrawn.push({ text, reason: event.reason });
    }
  },
  stop(run, event) {
    run.stop = event;
  },
  answer(run, event) {
    run.body = event.body;
  },
  error(run, event) {
    run.problem = event.problem;
  },
  done(run) {
    run.ended = true;
    end(run, run.problem ? FAILED : DONE);
  },
};

// Takes one event. An event that came already, as after a reconnect, changes nothing.
export function fold(run, name, data) {
  const event = JSON.parse(data);
  if (event.seq <= run.seq) return;
  run.seq = event.seq;
  run.ms = event.ms;
  keep(run, name, data);
  if (Object.hasOwn(FOLDS, name)) FOLDS[name](run, event);
  run.changed.add("run");
}

export function fail(run, problem) {
  run.problem = problem;
  run.note = "";
  run.changed.add("run");
  end(run, FAILED);
}

// Steps that were under way are so no more.
function end(run, phase) {
  run.phase = phase;
  for (const step of run.steps.values()) if (step.to === null) run.changed.add(step.id);
}

export function notice(run, text) {
  run.note = text;
  run.changed.add("run");
}

// The answer as far as it is written: all tokens that were not withdrawn.
export function answerOf(run) {
  if (run.body) return run.body.answer;
  let text = "";
  for (const step of run.steps.values()) text += step.written.answer;
  return limited(text);
}

// Cost so far, after `waited` ms by the browser's clock, and that of the body once it is there.
// Tokens are those of the steps that have ended.
export function costOf(run, waited = 0) {
  const steps = [...run.steps.values()];
  const sum = (of) => steps.reduce((total, step) => total + of(step), 0);
  const usage = run.body?.usage ?? {
    retrievals: sum((step) => step.queries.length),
    llm_calls: sum((step) => step.usage?.llm_calls ?? 0),
    prompt_tokens: sum((step) => step.usage?.prompt_tokens ?? 0),
    completion_tokens: sum((step) => step.usage?.completion_tokens ?? 0),
  };
  const missing = new Set(steps.flatMap((step) => step.missing));
  return {
    usage,
    ms: run.body?.timing_ms.total ?? Math.max(run.ms, waited),
    stoppedBy: run.stop?.stopped_by ?? null,
    degraded: run.body?.degraded ?? [...missing],
  };
}

// A passage as the last judgement left it.
export function judged(step, passage) {
  const found = step.judged.get(passage.passage_id);
  return {
    kept: found?.kept ?? passage.kept ?? null,
    reason: found?.reason ?? passage.reason ?? null,
  };
}

// "3.1", and "3.1.2" within it, belong to part 1 of the parts "3"; "4" belongs to no part.
export function laneOf(id) {
  const [group, part] = id.split(".");
  return part ? { group, part: Number(part) } : null;
}

// Whether a step's question is news: neither the run's, nor that of the step's part.
export function asksAnew(run, step) {
  const lane = laneOf(step.id);
  return step.question !== (lane ? run.parts[lane.part - 1] : run.request.question);
}

// The passage that a citation quotes, or null if its text is not here.
export function cited(run, citation) {
  const step = run.steps.get(citation.step);
  return step?.passages.find((each) => each.passage_id === citation.passage_id) ?? null;
}

// Splits a text at two places counted in code points, as the service counts.
export function split(text, start, end) {
  const first = unitsOf(text, start);
  const last = first + unitsOf(text.slice(first), end - start);
  return [text.slice(0, first), text.slice(first, last), text.slice(last)];
}

export function traceOf(run) {
  const head = JSON.stringify({ request: run.request, complete: run.ended && !run.traceCut });
  return [`${head.slice(0, -1)},"events":[\n`, run.trace.join(",\n"), "\n]}\n"];
}

function unitsOf(text, points) {
  let place = 0;
  for (let left = points; left > 0 && place < text.length; left--) {
    place += text.codePointAt(place) > 0xffff ? 2 : 1;
  }
  return place;
}

function keep(run, name, data) {
  run.traceCut ||= run.traceSize + data.length > LARGEST_TRACE;
  if (run.traceCut) return;
  run.traceSize += data.length;
  run.trace.push(`{"event":${JSON.stringify(name)},${data.slice(1)}`);
}

function touched(run, event) {
  const id = event.step ?? "";
  let step = run.steps.get(id);
  if (!step) {
    step = newStep(id, event.ms);
    if (run.steps.size < MOST_STEPS) run.steps.set(id, step);
  }
  run.changed.add(id);
  return step;
}

function newStep(id, ms) {
  return {
    id, kind: "answer", question: null, from: ms, to: null, parts: [], queries: [], passages: [],
    missing: [], judged: new Map(), ending: null, thought: "", trigger: null, standing: null, withdrawn: [],
    written: { draft: "", answer: "" }, answer: null, flags: [], usage: null,
  };
}

function limited(text) {
  return text.length > LONGEST_TEXT ? text.slice(0, LONGEST_TEXT) : text;
}
