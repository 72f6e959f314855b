// A draft as a heat-map: entropy × attention of each word.

import { element, score, tail, words } from "./elements.js";

const LONGEST_HEAT = 600; // words of a heat-map

// A draft up to the sentence that asked for a search: how much each word did.
export function heatMap(trigger, run) {
  const asked = wordsOf(trigger.query);
  const heat = (trigger.words ?? []).slice(0, LONGEST_HEAT);
  const made = element("figure", "heat");
  if (heat.length) {
    const asking = heat.findLastIndex((word) => word.text === trigger.token && word.score === trigger.score);
    made.append(heatLine(heat, trigger, asked, asking));
    if (run.request.question) made.append(questionLine(run.request.question, asked));
  }
  made.append(element("figcaption", "", ...captionOf(trigger)));
  if (heat.length) made.append(numbersOf(heat));
  return [made];
}

// A draft that stands: its words, and what was written after them.
export function standingHeat({ text, words: measured, threshold }) {
  const heat = measured.slice(0, LONGEST_HEAT);
  const line = heatLine(heat, { threshold }, new Set(), -1);
  const end = heat.reduce((place, word) => Math.max(text.indexOf(word.text, place) + word.text.length, place), 0);
  line.append(tail(text.slice(end)));
  const most = Math.max(...heat.map((word) => word.score));
  const told = most > threshold
    ? `This draft was accepted. Its highest score, ${score(most)}, is above ${score(threshold)}, but it belongs to a word without content, or the limit of searches was reached.`
    : `This draft was accepted: its highest score, ${score(most)}, is not above ${score(threshold)}.`;
  return [element("figure", "heat", line, element("figcaption", "", told), numbersOf(heat))];
}

function heatLine(heat, trigger, asked, asking) {
  const line = words("p", "sentence", "");
  heat.forEach((word, place) => line.append(heatWord(word, trigger, asked, place === asking), " "));
  return line;
}

function captionOf({ token, entropy, attention, score: value, threshold }) {
  const how = entropy === null
    ? ` triggered a search: its probability, ${score(value)}, is not above ${score(threshold)}.`
    : ` triggered a search: entropy ${score(entropy)} × attention ${score(attention)}, scaled to the sentence, is ${score(value)}, above ${score(threshold)}. Underlined words are in the query.`;
  return [words("strong", "", token), how];
}

function heatWord(word, trigger, asked, asking) {
  const made = words("span", "word", word.text);
  const heat = Math.min(word.score / Math.max(trigger.threshold, 0.01), 1.5) / 1.5;
  made.style.setProperty("--heat", heat.toFixed(3));
  made.title = `entropy ${score(word.entropy)}, attention ${score(word.attention)}, score ${score(word.score)}`;
  if (asking) made.classList.add("asking");
  if (asked.has(bare(word.text))) made.classList.add("queried");
  return made;
}

function questionLine(question, asked) {
  const line = words("p", "question", "");
  for (const word of question.split(/\s+/u)) {
    line.append(words("span", asked.has(bare(word)) ? "word queried" : "word", word), " ");
  }
  return line;
}

function numbersOf(heat) {
  const row = (tag, cells) => element("tr", "", ...cells.map((cell) => words(tag, "", cell)));
  const head = row("th", ["Word", "Entropy", "Attention", "Score"]);
  for (const cell of head.children) cell.scope = "col";
  const rows = heat.map((word) => row("td", [
    word.text, score(word.entropy), score(word.attention), score(word.score),
  ]));
  const table = element("table", "", element("thead", "", head), element("tbody", "", ...rows));
  return element("details", "", element("summary", "", "Values of each word"), table);
}

const bare = (word) => word.toLowerCase().replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, "");
const wordsOf = (text) => new Set(text.split(/\s+/u).map(bare).filter(Boolean));
