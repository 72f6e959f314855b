/* The command of the MCP Inspector, a process for each call; it sends numbers as they are typed. */

import { execFile } from "node:child_process";
import { promisify } from "node:util";

import { given, modules, run, told } from "./cells.mjs";

async function call(method, words, signal) {
  const all = ["--cli", `${given.url}/mcp`, "--transport", "http", "--method", method, ...words];
  const { stdout } = await promisify(execFile)(`${modules}.bin/mcp-inspector`, all, { signal });
  return JSON.parse(stdout);
}

const answer = (question, signal) => {
  const words = ["--tool-arg", `question=${question}`, "top_k=3", "filter={}"];
  return call("tools/call", ["--tool-name", "answer", ...words], signal);
};

async function* parts(question, signal) {
  yield (await answer(question, signal)).structuredContent.answer;
}

async function ask(listing) {
  if (listing) {
    const { tools } = await call("tools/list", ["--strict"]);
    return told(tools.map((each) => each.name).join(" "));
  }
  const { content, structuredContent } = await answer(given.question);
  return told(content[0].text, structuredContent.citations.map((each) => each.title));
}

await run(parts, ask, async () => {
  const { structuredContent } = await answer(given.question);
  return { object: { answer: structuredContent.answer } };
});
