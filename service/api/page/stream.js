// One question over `POST /answer/stream`: goes on after a broken connection, and asks again
// where the service says when.

const PATIENCE_MS = [250, 500, 1_000, 2_000, 4_000, 8_000]; // waits before each reconnect
const MOST_REFUSALS = 3; // of "too busy" or "shutting down", after which the problem is shown
const ELSEWHERE = ":answer-elsewhere";
const LONGEST_WAIT_S = 30;
const SLICE_MS = 8; // of parsing, after which the page gets to draw

export class Refused extends Error {
  constructor(problem, status) {
    super(problem.title);
    this.problem = problem;
    this.status = status;
  }
}

// A response as JSON. Throws Refused for a problem, and for any other failed response.
export async function getJson(path, key, signal) {
  const response = await fetch(path, { headers: headersOf(key), signal, cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// A file of the server as a URL of this page, which the caller must revoke.
export async function getFile(path, key, type) {
  const response = await fetch(path, { headers: headersOf(key), cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return URL.createObjectURL(new Blob([await response.blob()], { type }));
}

// Sends a request and returns its JSON, or null if there is none. Throws as `getJson` does.
export async function send(method, path, key, body) {
  const response = await fetch(path, { method, headers: headersOf(key), body, cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return response.status === 204 ? null : response.json();
}

// Calls `take(name, data)` for each event until `done`, and `tell(text)` about interruptions.
// Throws Refused, or AbortError once `signal` is aborted.
export async function ask(request, key, { take, tell, signal }) {
  const asked = { key, signal, last: null, idempotency: randomKey(), body: JSON.stringify(request) };
  let refusals = 0;
  for (let breaks = 0; ; ) {
    let reason;
    try {
      const received = await attempt(asked, take, () => {
        if (breaks || refusals) tell("");
        breaks = refusals = 0;
      });
      if (received) return;
      reason = "The connection ended before the answer.";
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof Refused) {
        if (error.problem.type.endsWith(ELSEWHERE)) throw new Refused(elsewhere(error.problem), error.status);
        if (!error.retryAfter || asked.last || ++refusals > MOST_REFUSALS) throw error;
        const seconds = Math.min(error.retryAfter, LONGEST_WAIT_S);
        tell(`${error.problem.title}. Asking again in ${seconds} s.`);
        await pause(seconds * 1_000, signal);
        continue;
      }
      reason = "The connection was lost.";
    }
    if (breaks >= PATIENCE_MS.length) throw new Refused(unreachable(reason), 0);
    tell(`${reason} Reconnecting …`);
    await pause(PATIENCE_MS[breaks++], signal);
  }
}

// Reads one response. Returns whether the stream came to its end.
async function attempt(asked, take, connected) {
  const headers = headersOf(asked.key);
  headers["Content-Type"] = "application/json";
  headers["Idempotency-Key"] = asked.idempotency;
  if (asked.last) headers["Last-Event-ID"] = asked.last;
  const response = await fetch("answer/stream", {
    method: "POST", headers, body: asked.body, signal: asked.signal, cache: "no-store",
  });
  if (response.status === 204) return true;
  if (!response.ok) throw await refusal(response);
  let ended = false;
  await readEvents(response.body, (event) => {
    connected();
    if (event.id) asked.last = event.id;
    take(event.event, event.data);
    ended ||= event.event === "done";
  });
  return ended;
}

export async function readEvents(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parse = parser(take);
  for (let since = performance.now(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const line of parse.lines(value)) {
      parse.line(line);
      if (performance.now() - since > SLICE_MS) {
        await pause(0);
        since = performance.now();
      }
    }
  }
}

// Server-Sent Events: lines of a chunk, then events of lines.
function parser(take) {
  let rest = "", event = {};
  return {
    *lines(chunk) {
      let begin = 0;
      for (let end; (end = chunk.indexOf("\n", begin)) >= 0; begin = end + 1) {
        const line = rest + chunk.slice(begin, end);
        rest = "";
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
      }
      rest += chunk.slice(begin);
    },
    line(line) {
      if (line === "") {
        if (event.data !== undefined) take(event);
        event = {};
        return;
      }
      const colon = line.indexOf(":");
      if (colon <= 0) return;
      const name = line.slice(0, colon);
      const value = line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
      event[name] = name === "data" && event.data !== undefined ? `${event.data}\n${value}` : value;
    },
  };
}

async function refusal(response) {
  let problem;
  try {
    problem = await response.json();
  } catch {
    problem = {};
  }
  problem = { title: `The server answered ${response.status}`, detail: "", type: "", ...problem };
  const error = new Refused(problem, response.status);
  error.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  return error;
}

// A reconnect was routed to another process or gateway, which does not have the events of this answer.
function elsewhere(problem) {
  const detail = "The connection was lost, and the new connection was routed to another process of "
    + "the service, which does not have this answer. The part received so far is shown below. Ask again.";
  return { ...problem, title: "The answer cannot be continued", detail };
}

function unreachable(reason) {
  return { type: "", title: "The server cannot be reached", detail: `${reason} Ask again.`, status: 0 };
}

function headersOf(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// crypto.randomUUID is not there on plain HTTP.
function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
