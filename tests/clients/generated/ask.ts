import { AnswerApi, Configuration, ResponseError } from "./revelator";

declare const process: { argv: string[] };

async function main(): Promise<void> {
  const [url, question] = process.argv.slice(2);
  const api = new AnswerApi(new Configuration({ basePath: url }));
  const found = await api.answer({ answerRequest: { question } });
  console.log(found.answer, "|", found.citations[0].title);
  try {
    await api.answer({ answerRequest: { question: "" } });
  } catch (error) {
    console.log((error as ResponseError).response.status);
  }
}

main();
