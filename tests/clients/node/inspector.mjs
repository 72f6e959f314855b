/* The command of the MCP Inspector, a process for each call; it sends numbers as they are typed. */

import { execFile } from "node:child_process";
import { promisify } from "node:util";

import { given, modules, run, told } from "./cells.mjs";

const execute = promisify(execFile);
const command = `${modules}.bin/mcp-inspector`;

async function call(method, words, signal) {
  const all = ["--cli", `${given.url}/mcp`, "--transport", "http", "--method", method, ...words];
  const { stdout } = await execute(command, all, { signal });
  return JSON.parse(stdout);
}

const ask = (question, signal) =>
  call("tools/call", [
    "--tool-name", "answer", "--tool-arg", `question=${question}`, "top_k=3", "filter={}",
  ], signal);

async function* parts(question, signal) {
  yield (await ask(question, signal)).structuredContent.answer;
}

await run(parts, {
  chat: async () => told((await ask(given.question)).content[0].text),
  tools: async () => {
    const { tools } = await call("tools/list", ["--strict"]);
    return told(tools.map((each) => each.name).join(" "));
  },
  structured: async () => ({
    object: { name: (await ask(given.question)).structuredContent.answer },
  }),
  citations: async () => {
    const { answer, citations } = (await ask(given.question)).structuredContent;
    return told(answer, citations.map((each) => each.title));
  },
});
