"""What the reader learns from: people's questions with their passages, passages without the answer
that a search finds, and made-up tables."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tantivy

from service.encoders.base import AnswerKind
from service.text.sentences import sentences
from service.workshop.facts.rows import read_lines
from service.workshop.facts.splits import canonical_form, is_held_out, side_of

WITH_NEGATIVE, WITHOUT_ANSWER = 0.35, 0.28  # shares of the questions with an answer
TOP = 6


class Example(NamedTuple):
    """A question and one passage. `spans` are all places of the answer, in characters."""

    question: str
    title: str
    text: str
    kind: AnswerKind
    spans: tuple[tuple[int, int], ...] = ()


Row = dict[str, Any]  # a line of a data set
Group = tuple[Example, ...]  # passages of one question, whose scores are compared


def groups_of(folder: Path, *, held_out: bool, rng: random.Random) -> list[Group]:
    """Return the questions of one data folder, of one side of the split. Passages without the
    answer are of the same side."""
    passages = {row["id"]: row for row in read_lines(folder / "corpus.jsonl")}
    searched = Search([each for each in passages.values() if is_held_out(_key(each)) is held_out])
    side = "test" if held_out else "train"
    groups: list[Group] = []
    for row in read_lines(folder / "questions.jsonl"):
        gold = [passages[each] for each in row["supporting_passage_ids"]]
        keys = [_key(each) for each in gold]
        if not gold or side_of(keys, keys, row["question"]) != side:
            continue
        shown = [
            passages[each]
            for each in row.get("passage_ids", ())
            if is_held_out(_key(passages[each])) is held_out
        ]
        near = shown or searched.near(row["question"])
        made = _groups(row, gold, near, rng.random() if not held_out else 1.0, rng)
        groups.extend(made)
    return groups


def _key(passage: Row) -> str:
    return str(passage["title"] or passage["text"])


def _groups(
    row: Row, gold: Sequence[Row], near: Sequence[Row], chance: float, rng: random.Random
) -> Iterator[Group]:
    question, answers = row["question"], [answer.strip(" .") for answer in row["answers"]]
    if not row.get("answerable", True):
        yield tuple(_none(question, each["title"], each["text"]) for each in gold[:1])
        return
    if answers[0].lower() in {"yes", "no"}:
        if len(gold) == 1:
            kind: AnswerKind = "yes" if answers[0].lower() == "yes" else "no"
            beside = next((each for each in near if each not in gold), None)
            if chance < WITHOUT_ANSWER and beside:
                yield (_none(question, beside["title"], beside["text"]),)
            else:
                yield (Example(question, gold[0]["title"], gold[0]["text"], kind),)
        return
    held = [(each, places(answers, each["text"])) for each in gold]
    passage, spans = max(held, key=lambda pair: len(pair[1]))
    if not spans:
        return
    other = [each for each in near if each not in gold and not places(answers, each["text"])]
    right = Example(question, passage["title"], passage["text"], "span", spans)
    wrong = [_none(question, each["title"], each["text"]) for each in other[:2]]
    if chance < WITHOUT_ANSWER:
        left = without(passage["text"], spans)
        if left and rng.random() < 0.6:
            yield (_none(question, passage["title"], left),)
        elif wrong:
            yield (rng.choice(wrong),)
    elif chance < WITHOUT_ANSWER + WITH_NEGATIVE and wrong:
        yield (right, rng.choice(wrong))
    else:
        yield (right,)


def _none(question: str, title: str, text: str) -> Example:
    return Example(question, title, text, "none")


def places(answers: Sequence[str], text: str) -> tuple[tuple[int, int], ...]:
    """Return where whole words of the text are one of the answers."""
    found = [
        (match.start(), match.end())
        for answer in answers
        if answer
        for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text)
    ]
    return tuple(found[:8])


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the text without the sentences that contain a span."""
    kept = [
        text[start:end]
        for start, end in sentences(text)
        if not any(start < right and left < end for left, right in spans)
    ]
    return "".join(kept).strip()


class Search:
    """BM25 over passages, as the service searches."""

    def __init__(self, passages: Sequence[Row], size: int = TOP) -> None:
        """A search returns the best `size` passages, which have `title` and `text`."""
        self._passages, self._size = passages, size
        schema = tantivy.SchemaBuilder()
        schema.add_text_field("text", tokenizer_name="en_stem")
        schema.add_integer_field("row", stored=True)
        self._index = tantivy.Index(schema.build())
        writer = self._index.writer(num_threads=1)
        for row, each in enumerate(passages):
            text = f"{each['title']} {each['text']}"
            writer.add_document(tantivy.Document(text=text, row=row))
        writer.commit()
        self._index.reload()
        self._searcher = self._index.searcher()

    def near(self, question: str) -> list[Row]:
        """Return the passages that share most with the question, best first."""
        query = self._index.parse_query(canonical_form(question).replace("_", " "), ["text"])
        hits = self._searcher.search(query, self._size).hits
        return [self._passages[self._searcher.doc(at)["row"][0]] for _, at in hits]


SUBJECTS: dict[str, tuple[str, ...]] = {
    "product": ("Desk", "Chair", "Lamp", "Monitor", "Router", "Drill", "Pump", "Filter", "Cable"),
    "office": ("Lisbon", "Oslo", "Graz", "Lyon", "Turin", "Leeds", "Porto", "Gdansk", "Utrecht"),
    "department": ("Finance", "Sales", "Legal", "Support", "Purchasing", "Logistics", "Research"),
    "plan": ("Basic", "Team", "Business", "Premium", "Starter", "Enterprise", "Student", "Pro"),
    "position": ("Analyst", "Manager", "Technician", "Driver", "Trainee", "Director", "Nurse"),
    "city": ("Paris", "Madrid", "Berlin", "Rome", "Vienna", "Zurich", "London", "Warsaw", "Prague"),
    "course": ("First aid", "Fire safety", "Data protection", "Forklift", "Welding", "Excel"),
    "machine": ("Press", "Lathe", "Compressor", "Conveyor", "Oven", "Mixer", "Crane", "Boiler"),
}
PEOPLE = "Anna Ben Carla David Eva Felix Grete Hugo Ines Jonas Karim Lena Marta Nils Olga Paul Rosa"
FAMILIES = "Weber Rossi Novak Martin Silva Larsen Kovac Meyer Dubois Haas Costa Lind Berger Ortiz"


def _value(header: str, rng: random.Random) -> str:
    number = rng.choice((rng.randint(1, 30), rng.randint(10, 990), rng.randint(1000, 9999)))
    forms = {
        "price": f"{rng.choice(('EUR ', '$', '€'))}{number}.{rng.choice(('00', '50', '90', '99'))}",
        "budget": f"{number:,} {rng.choice(('EUR', 'CHF', 'USD'))}",
        "amount": f"{number} {rng.choice(('days', 'hours', 'weeks', 'months', 'kg', 'km', 'GB'))}",
        "rate": f"{rng.randint(0, 99)}{rng.choice(('', '.5', '.25'))} %",
        "date": f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(1990, 2030)}",
        "day": rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")),
        "name": f"{rng.choice(PEOPLE.split())} {rng.choice(FAMILIES.split())}",
        "place": rng.choice(SUBJECTS["city"]),
        "code": f"{rng.choice('ABCDEFGH')}{rng.choice('KLMNPRST')}-{rng.randint(10, 9999)}",
        "count": str(number),
        "time": f"{rng.randint(6, 20)}:{rng.choice(('00', '15', '30', '45'))}",
    }
    return forms[HEADERS[header]]


MONTHS = ("January", "March", "May", "June", "July", "September", "October", "December")
HEADERS = {
    "Price": "price", "Monthly fee": "price", "List price": "price", "Budget": "budget",
    "Revenue": "budget", "Allowance": "price", "Daily rate": "price", "Deposit": "price",
    "Notice period": "amount", "Delivery time": "amount", "Warranty": "amount", "Weight": "amount",
    "Storage": "amount", "Retention": "amount", "Discount": "rate", "VAT": "rate", "Share": "rate",
    "Start date": "date", "Valid from": "date", "Last inspection": "date", "Due date": "date",
    "Weekday": "day", "Contact": "name", "Head": "name", "Trainer": "name", "Owner": "name",
    "Location": "place", "Warehouse": "place", "Article number": "code", "Room": "code",
    "Cost centre": "code", "Stock": "count", "Employees": "count", "Seats": "count",
    "Opens at": "time", "Begins": "time",
}  # fmt: skip
ASKED = (
    "What is the {header} of {row}?", "What is the {header} for {row}?", "{header} of {row}?",
    "What {header} does {row} have?", "Which {header} applies to {row}?",
    "Tell me the {header} for the {kind} {row}.", "{row}: what is the {header}?",
)  # fmt: skip
BY_FORM = {
    "price": ("How much does {row} cost?", "How much is the {header} for {row}?"),
    "amount": ("How long is the {header} of {row}?", "How much {header} does {row} have?"),
    "date": ("When is the {header} of {row}?", "What is the {header} of {row}?"),
    "name": ("Who is the {header} of {row}?", "Who is {header} for {row}?"),
    "place": ("Where is the {header} of {row}?", "In which city is the {header} of {row}?"),
    "count": ("How many {header} does {row} have?", "How many {header} are there in {row}?"),
    "time": ("At what time is {row}?", "When does {row} start?"),
}


def made_up_tables(count: int, rng: random.Random) -> list[Group]:
    """Return questions about cells of tables in the form `Caption. Header: value; Header: value.`,
    a row a sentence. A quarter of them cannot be answered; a third are shown with another part of
    the table."""
    return [_about_a_table(rng) for _ in range(count)]


def _about_a_table(rng: random.Random) -> Group:
    kind, names = _names(rng)
    headers = rng.sample(list(HEADERS), rng.randint(2, 5))
    size = rng.randint(2, 6)
    text, cells = _table(kind, names[:size], headers, rng)
    if rng.random() < 0.4:  # another table in the passage, which may name the same
        other, others = _names(rng)
        shared = [*headers[:1], *rng.sample(list(HEADERS), 2)]
        second, _ = _table(other, others[:3], shared, rng, fits=names[:size])
        if rng.random() < 0.5:
            text = f"{text} {second}"
        else:
            text, before = f"{second} {text}", len(second) + 1
            cells = {key: (a + before, b + before) for key, (a, b) in cells.items()}
    asked, absent = rng.choice(headers), rng.choice([h for h in HEADERS if h not in headers])
    name = rng.choice(names[:size])
    if rng.random() < 0.25:
        if rng.random() < 0.3:
            asked = absent
        else:
            name = names[-1]
        return (_none(_ask(kind, name, asked, rng), "", text),)
    spans: tuple[tuple[int, int], ...] = (cells[name, asked],)
    question = _ask(kind, name, asked, rng)
    value = text[slice(*spans[0])]
    if rng.random() < 0.2 and text.count(value) == 1:  # the other way round: the row of a value
        question = f"Which {kind} has the {asked.lower()} {value}?"
        spans = places([name], text)[:1]
    right = Example(question, "", text, "span", spans)
    if rng.random() < 0.35:
        rest = names[size : min(size + 4, len(names) - 1)]
        return right, _none(question, "", _table(kind, rest, headers, rng)[0])
    return (right,)


def _names(rng: random.Random) -> tuple[str, list[str]]:
    """Return a kind of things, and some fourteen names of such; the last one is in no table."""
    if rng.random() < 0.4:
        prefix = "".join(rng.choices("ABCDEFGHKLMNPRSTVX", k=rng.randint(1, 3)))
        numbers = rng.sample(range(1, 99), 14)
        step = rng.choice((1, 1, 5, 10, 100))
        mark, end = rng.choice("-- "), rng.choice(("", "", "", "X", "-S"))
        return rng.choice(("model", "article", "type", "room", "order")), [
            f"{prefix}{mark}{n * step}{end}" for n in numbers
        ]
    kind = rng.choice(list(SUBJECTS))
    names = [f"{each}{end}" for each in SUBJECTS[kind] for end in ("", " II", ", large")]
    if rng.random() < 0.3:
        names = [f"{name} {_value('Room', rng)}" for name in names]
    return kind, rng.sample(names, min(14, len(names)))


def _table(
    kind: str, names: Sequence[str], headers: Sequence[str], rng: random.Random,
    fits: Sequence[str] = (),
) -> tuple[str, dict[tuple[str, str], tuple[int, int]]]:  # fmt: skip
    """Return a table, and where its cells are. One more column names some of `fits`."""
    year = rng.randint(2015, 2030)
    captions = (f"{kind.title()}s {year}.", f"Overview of {kind}s.", f"List of {kind}s.", "")
    text, cells = rng.choice(captions), {}
    for name in names:
        text += f" {kind.title()}: {name}"
        for header in headers:
            text += f"; {header}: "
            value = _value(header, rng)
            cells[name, header] = (len(text), len(text) + len(value))
            text += value
        if fits:
            text += f"; Fits: {', '.join(rng.sample(list(fits), min(2, len(fits))))}"
        text += "."
    cut = len(text) - len(text.lstrip())
    return text.lstrip(), {key: (a - cut, b - cut) for key, (a, b) in cells.items()}


def _ask(kind: str, row: str, header: str, rng: random.Random) -> str:
    forms = ASKED + BY_FORM.get(HEADERS[header], ()) * 2
    return rng.choice(forms).format(kind=kind, row=row, header=header.lower())


def write_smoke_questions(folder: Path) -> None:
    """Write questions of both sides of the split, 50 of them held out, for a smoke run."""
    rng = random.Random(0)
    names, places_ = PEOPLE.split(), SUBJECTS["city"]
    held_out = number = 0
    passages, questions = [], []
    while held_out < 50 or number < 400:
        title = f"Entry {number}"
        other, name, town = rng.choice(names), rng.choice(names), rng.choice(places_)
        question = f"Where does {name} live, {number}?"
        sides = is_held_out(title), is_held_out(question)
        number += 1
        if any(sides) and (held_out == 50 or not all(sides)):
            continue
        held_out += all(sides)
        text = f"{other} likes {rng.choice(places_)} more. {name} lives in {town} now."
        passages.append({"id": f"p{number}", "title": title, "text": text})
        questions.append({
            "question": question, "answers": [town], "supporting_passage_ids": [f"p{number}"],
        })  # fmt: skip
    for file, rows in (("corpus", passages), ("questions", questions)):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(lines, encoding="utf-8")
