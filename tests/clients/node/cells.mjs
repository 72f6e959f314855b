/* What the scripts of the clients share: they take the names of cells on standard input, and print
 * what the client returned for each, a JSON object a line. Packages come from CLIENTS_NODE. */

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export const given = JSON.parse(process.argv[2]);
export const base = `${given.url}/v1`;
export const model = "revelator";
export const inText = { revelator: { citations: "text" } };
export const schema = {
  type: "object",
  properties: { name: { type: "string" } },
  required: ["name"],
  additionalProperties: false,
};
export const cities = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const modules = `${process.env.CLIENTS_NODE}/`;

const lookup = createRequire(modules);

/** A package of the environment of the clients. */
export const load = (name) => import(pathToFileURL(lookup.resolve(name)).href);

export const told = (text, sources = []) => ({ text: text ?? "", sources });

async function drain(parts) {
  const found = [];
  for await (const part of parts) found.push(part);
  return found;
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Serve the cells until standard input ends. `parts(question, signal)` yields the text of each
 * event of a stream, which may be empty; from it come `stream` and `stop`. */
export async function run(parts, cells) {
  const all = {
    stream: async () => {
      const found = await drain(parts(given.question, new AbortController().signal));
      return { ...told(found.join("")), events: found.length };
    },
    /* Leave when the next line says that the question is being answered. */
    stop: async () => {
      const leaving = new AbortController();
      let ended = false;
      const reading = drain(parts(given.slow, leaving.signal)).then(
        () => (ended = true),
        () => (ended ||= !leaving.signal.aborted),
      );
      await lines.next();
      const early = ended;
      leaving.abort();
      await reading;
      return { ended: early };
    },
    ...cells,
  };
  for (;;) {
    const { value, done } = await lines.next();
    if (done) break;
    const found = await all[value]().catch((error) => ({ error: `${error.name}: ${error.message}` }));
    process.stdout.write(`\n${JSON.stringify(found)}\n`);
  }
  process.exit(0);
}
