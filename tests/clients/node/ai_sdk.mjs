/* The AI SDK, by the provider of the second argument: `chat` and `responses` of @ai-sdk/openai, or
 * `compatible`, which drops annotations: its citations are asked for in the text. */

import { base, cities, given, load, model, run, schema, told } from "./cells.mjs";

const { generateObject, generateText, jsonSchema, streamText, tool } = await load("ai");
const kind = process.argv[3];
const at = { name: "revelator", baseURL: base, apiKey: "none", supportsStructuredOutputs: true };

const provided =
  kind === "compatible"
    ? (await load("@ai-sdk/openai-compatible")).createOpenAICompatible(at)(model)
    : (await load("@ai-sdk/openai")).createOpenAI(at)[kind](model);
const inText = kind === "compatible" ? { revelator: { revelator: { citations: "text" } } } : {};
const common = { model: provided, maxRetries: 0, providerOptions: inText };
const weather = tool({ description: "The weather.", inputSchema: jsonSchema(cities) });

async function* parts(question, abortSignal) {
  const stream = streamText({ ...common, prompt: question, abortSignal, onError: () => {} });
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    yield part.type === "text-delta" ? part.text : "";
  }
}

async function ask(offering) {
  const tools = offering ? { weather } : undefined;
  const { text, sources } = await generateText({ ...common, prompt: given.question, tools });
  return told(text, sources.map((each) => each.url ?? each.title));
}

await run(parts, ask, async () => {
  const asked = { ...common, prompt: given.question, schema: jsonSchema(schema) };
  return { object: (await generateObject(asked)).object };
});
