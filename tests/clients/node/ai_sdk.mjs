/* The AI SDK, by the provider of the second argument: `chat` and `responses` of @ai-sdk/openai, or
 * `compatible`, which drops annotations: its citations are asked for in the text. */

import { base, cities, given, inText, load, model, run, schema, told } from "./cells.mjs";

const { generateObject, generateText, jsonSchema, streamText, tool } = await load("ai");
const prompt = given.question;
const kind = process.argv[3];

async function provided() {
  if (kind === "compatible") {
    const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
    return createOpenAICompatible({
      name: "revelator", baseURL: base, apiKey: "none", supportsStructuredOutputs: true,
    })(model);
  }
  const { createOpenAI } = await load("@ai-sdk/openai");
  return createOpenAI({ baseURL: base, apiKey: "none" })[kind](model);
}

const common = { model: await provided(), maxRetries: 0 };

async function* parts(question, abortSignal) {
  const stream = streamText({ ...common, prompt: question, abortSignal, onError: () => {} });
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    yield part.type === "text-delta" ? part.text : "";
  }
}

await run(parts, {
  chat: async () => told((await generateText({ ...common, prompt })).text),
  tools: async () => {
    const weather = tool({ description: "The weather.", inputSchema: jsonSchema(cities) });
    return told((await generateText({ ...common, prompt, tools: { weather } })).text);
  },
  structured: async () => {
    const { object } = await generateObject({ ...common, prompt, schema: jsonSchema(schema) });
    return { object };
  },
  citations: async () => {
    const providerOptions = kind === "compatible" ? { revelator: inText } : {};
    const { text, sources } = await generateText({ ...common, prompt, providerOptions });
    return told(text, sources.map((each) => each.url ?? each.title));
  },
});
