/* What the scripts of the clients share: they take the names of cells on standard input, and print
 * what the client returned for each, a JSON object a line. Packages come from CLIENTS_NODE. */

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export const given = JSON.parse(process.argv[2]);
export const base = `${given.url}/v1`;
export const model = "revelator";
export const modules = `${process.env.CLIENTS_NODE}/`;

const object = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
  additionalProperties: false,
});
export const schema = object("answer");
export const cities = object("city");

const lookup = createRequire(modules);
export const load = (name) => import(pathToFileURL(lookup.resolve(name)).href);
export const told = (text, sources = []) => ({ text: text ?? "", sources });

async function drain(parts) {
  const found = [];
  for await (const part of parts) found.push(part);
  return found;
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Leave when the next line says that the question is being answered. */
async function stop(parts) {
  const leaving = new AbortController();
  let wrong = null;
  const reading = drain(parts(given.slow, leaving.signal)).then(
    () => (wrong = "the question ended before it was stopped"),
    (error) => (wrong = `the question ended before it was stopped: ${error}`),
  );
  await lines.next();
  const early = wrong;
  leaving.abort();
  await reading;
  return { wrong: early };
}

/** Serve the cells until standard input ends. `parts(question, signal)`: the text, which may be
 * empty, of each event of a stream; `ask(offering)`: the answer, with a tool offered or not. */
export async function run(parts, ask, structured) {
  const cells = {
    chat: () => ask(false),
    stream: async () => {
      const found = await drain(parts(given.question));
      return { ...told(found.join("")), events: found.length };
    },
    tools: () => ask(true),
    structured,
    citations: () => ask(false),
    stop: () => stop(parts),
  };
  for (let next = await lines.next(); !next.done; next = await lines.next()) {
    const wrong = (error) => ({ error: `${error.name}: ${error.message}`.slice(0, 2000) });
    process.stdout.write(`\n${JSON.stringify(await cells[next.value]().catch(wrong))}\n`);
  }
  process.exit(0);
}
