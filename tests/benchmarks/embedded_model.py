"""Figures of the embedded model's card, all on held-out titles and questions.

python -m tests.benchmarks.embedded_model --data DIR [--model DIR] [--n 200]

prints a Markdown table. Labels are the likeliest allowed choice, texts are written greedily, as
in serving. Chance, or the baseline, stands beside every figure.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import LlamaForCausalLM

from service.evaluation.metrics import f1
from service.text import content_words, sentences
from service.training.corpora import load_questions
from service.training.draft_scoring import Drafted, auc, histogram
from service.training.scoring import (
    Heldout,
    Reading,
    Scorer,
    exact_match,
    label_accuracy,
    macro_f1,
    route_of,
    squeezed,
)
from service.training.tokenizer import load_tokenizer

SHIPPED = Path(__file__).parents[2] / "service" / "models" / "embedded"
REAL = ("direct", "single", "complex")
QUESTION_WORDS = ("who", "what", "when", "where", "which", "how", "why", "is", "are", "did", "and")


class Row(NamedTuple):
    """A line of the table; scores are shares from 0 to 1, `beside` is chance or a baseline."""

    what: str
    score: float
    beside: str
    size: int


def surface(question: str) -> list[float]:
    """What a question shows without being understood: length, case, marks, its first word."""
    words = question.split()
    first = words[0].lower() if words else ""
    return [
        len(words) / 10,
        len(question) / 50,
        float(question.endswith("?")),
        sum(c.isupper() for c in question) / 5,
        sum(c.isdigit() for c in question) / 4,
        question.count(",") + question.count("'"),
        float(" and " in question.lower()),
        float(" or " in question.lower()),
        1.0,
        *(float(first == word) for word in QUESTION_WORDS),
    ]  # fmt: skip


def surface_baseline(
    train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """(given, gold) of a logistic regression on surface features."""
    names = sorted({label for _, label in train})
    inputs = torch.tensor([surface(question) for question, _ in train])
    labels = torch.tensor([names.index(label) for _, label in train])
    torch.manual_seed(0)
    layer = torch.nn.Linear(inputs.shape[1], len(names))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(layer(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.inference_mode():
        given = layer(torch.tensor([surface(question) for question, _ in test])).argmax(-1)
    return [(names[int(g)], gold) for g, (_, gold) in zip(given, test, strict=True)]


def training_routes(data: Path) -> list[tuple[str, str]]:
    """(question, route) of the training side, balanced, as the router meets real questions."""
    sources = {
        "direct": ("commonsenseqa",),
        "single": ("nq_open", "webquestions", "squad"),
        "complex": ("musique", "strategyqa"),
    }
    rows = []
    for route, names in sources.items():
        found = [q.question for name in names for q in load_questions(data, name)]
        chosen = random.Random(0).sample(found, min(600, len(found)))
        rows += [(question.lower().rstrip("? ").strip(), route) for question in chosen]
    return rows


def routing(scorer: Scorer, held: Heldout, size: int) -> list[Row]:
    real = held.real_routes(size)
    given = [(route_of(scorer, question), gold) for question, gold in real]
    base = macro_f1(surface_baseline(training_routes(held.data), real))
    rows = [Row("router, real questions, macro-F1", macro_f1(given), f"surface {base:.3f}",
                len(real))]  # fmt: skip
    for name in REAL:
        own = [pair for pair in given if pair[1] == name]
        right = sum(a == b for a, b in own) / len(own)
        rows.append(Row(f"router, real questions, recall of `{name}`", right, "", len(own)))
    made = held.made_routes(size // 2)
    given = [(route_of(scorer, question), gold) for question, gold in made]
    for name in ("single", "compound", "complex"):
        own = [pair for pair in given if pair[1] == name]
        right = sum(a == b for a, b in own) / len(own)
        rows.append(Row(f"router, synthesised `{name}`, unseen wordings", right, "0.25", len(own)))
    return rows


def reading(scorer: Scorer, held: Heldout, size: int) -> list[Row]:
    rows = []
    for count, beside in ((0, "passage alone"), (2, "and two distractors"),
                          (4, "and four distractors")):  # fmt: skip
        pairs = held.reading(size, count)
        rows.append(Row(f"reader, {beside}, EM", exact_match(scorer, pairs, 32), "", len(pairs)))
    alone = held.squad(size, 0)
    right = sum(
        squeezed(scorer.write(each.prompt, 32)) in set(map(squeezed, each.answers))
        for each in alone
    )
    rows.append(Row("reader, people's questions (XQuAD), passage alone, EM", right / len(alone),
                    "", len(alone)))  # fmt: skip
    among = held.squad(size, 4)
    score = statistics.fmean(best_f1(scorer.write(each.prompt, 32), each) for each in among)
    base = statistics.fmean(best_f1(overlapping_sentence(each), each) for each in among)
    rows.append(Row("reader, people's questions, passage among five, F1", score,
                    f"best-overlap sentence {base:.3f}", len(among)))  # fmt: skip
    return rows


def best_f1(given: str, reading: Reading) -> float:
    return max(f1(given, answer) for answer in reading.answers)


def overlapping_sentence(reading: Reading) -> str:
    """The sentence of all passages shown that shares most content words with the question."""
    asked = content_words(reading.question)
    found = [p.text[start:end] for p in reading.passages for start, end in sentences(p.text)]
    return max(found, key=lambda sentence: len(asked & content_words(sentence)))


def steering(scorer: Scorer, held: Heldout, size: int) -> list[Row]:
    """The other roles."""
    relevance, endings = held.relevance(size), held.endings(size)
    refines, parts = held.refines(size // 2), held.decompositions(size // 2)
    finals, merges = held.finals(size), held.merges(size // 2)
    return [
        Row("relevance, accuracy", label_accuracy(scorer, relevance, ("true", "false")), "0.5",
            len(relevance)),
        Row("ending, accuracy", label_accuracy(scorer, endings, ("yes", "no")), "0.5",
            len(endings)),
        Row("refine, exact", exact_match(scorer, refines), "", len(refines)),
        Row("decompose, exact", exact_match(scorer, parts, 160), "", len(parts)),
        Row("merge, exact", exact_match(scorer, merges), "", len(merges)),
        Row("final, comparisons, accuracy", exact_match(scorer, finals), "0.5", len(finals)),
    ]  # fmt: skip


def drafting(scorer: Scorer, held: Heldout, size: int) -> tuple[list[Row], str]:
    """DRAGIN: what a draft gets right from its passages, and how sure it is of its facts."""
    drafted, maker = Drafted(scorer, held), held.maker
    forms = (("single fact", maker.single, ""), ("bridge", maker.bridge, ""),
             ("comparison", maker.comparison, "0.5"))  # fmt: skip
    rows = []
    for name, make, beside in forms:
        right = sum(drafted.right(make(0)) for _ in range(size // 2))
        rows.append(Row(f"draft, {name}, passages shown, EM", right / (size // 2), beside,
                        size // 2))  # fmt: skip
    sure = [drafted.sureness() for _ in range(size)]
    given, others, bare = ([row[place] for row in sure] for place in range(3))
    for name, values in (("its passage shown", given), ("other passages shown", others),
                         ("no passage shown", bare)):  # fmt: skip
        mean = sum(values) / len(values)
        rows.append(Row(f"draft, entropy at the fact, {name}, nats", mean, "", len(values)))
    rows += [
        Row("draft, entropy tells no passage, AUC", auc(given, bare), "0.5", len(bare)),
        Row("draft, entropy tells other passages, AUC", auc(given, others), "0.5", len(others)),
    ]
    return rows, histogram(sure)


def closed_book(scorer: Scorer, data: Path, size: int) -> Row:
    """Common-sense questions without their choices; the choice must be written exactly."""
    questions = load_questions(data, "commonsenseqa", held_out=True)[:size]
    pairs = [
        (f"Task: closed\nQuestion: {q.question}\nAnswer:", q.row["choices"][q.row["answer"]])
        for q in questions
    ]
    return Row("closed book, common sense, exact", exact_match(scorer, pairs, 16), "", len(pairs))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | figure | beside | n |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.score:.3f} | {row.beside} | {row.size} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of corpora and questions")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of the weights")
    parser.add_argument("--n", type=int, default=200, help="questions a row, about")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    scorer, held = Scorer(model, load_tokenizer(options.model)), Heldout(options.data)
    rows = routing(scorer, held, options.n) + reading(scorer, held, options.n)
    rows += [*steering(scorer, held, options.n), closed_book(scorer, options.data, options.n)]
    drafts, bars = drafting(scorer, held, options.n)
    print(table(rows + drafts))
    print(f"\n{bars}")


if __name__ == "__main__":
    main()
