/* OpenAI's client for JavaScript. */

import { base, cities, given, load, model, run, schema, told } from "./cells.mjs";

const { default: OpenAI } = await load("openai");
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
const offered = { type: "function", function: { name: "weather", parameters: cities } };

const create = (question, fields, options) =>
  client.chat.completions.create(
    { model, messages: [{ role: "user", content: question }], ...fields },
    options,
  );

async function* parts(question, signal) {
  const stream = await create(question, { stream: true }, { signal });
  for await (const chunk of stream) yield chunk.choices[0]?.delta.content ?? "";
}

async function ask(offering) {
  const found = await create(given.question, offering ? { tools: [offered] } : {});
  const { content, annotations } = found.choices[0].message;
  return told(content, annotations.map((each) => each.url_citation.url));
}

await run(parts, ask, async () => {
  const found = await create(given.question, { response_format: format });
  return { object: JSON.parse(found.choices[0].message.content) };
});
