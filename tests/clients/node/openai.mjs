/* OpenAI's client for JavaScript. */

import { base, cities, given, load, model, run, schema, told } from "./cells.mjs";

const { default: OpenAI } = await load("openai");
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: given.question }];

const ask = async (fields = {}) =>
  (await client.chat.completions.create({ model, messages, ...fields })).choices[0].message;

async function* parts(question, signal) {
  const sent = { model, messages: [{ role: "user", content: question }], stream: true };
  const stream = await client.chat.completions.create(sent, { signal });
  for await (const chunk of stream) yield chunk.choices[0]?.delta.content ?? "";
}

await run(parts, {
  chat: async () => told((await ask()).content),
  tools: async () => {
    const offered = { type: "function", function: { name: "weather", parameters: cities } };
    return told((await ask({ tools: [offered] })).content);
  },
  structured: async () => {
    const format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    return { object: JSON.parse((await ask({ response_format: format })).content) };
  },
  citations: async () => {
    const message = await ask();
    return told(message.content, message.annotations.map((each) => each.url_citation.url));
  },
});
