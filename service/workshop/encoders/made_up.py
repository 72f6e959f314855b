"""What the reader learns from besides people's questions: questions about made-up tables and rules,
and about facts that patterns find in encyclopaedia passages."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.workshop.encoders.reading import Example, Group, Search, no_answer, places
from service.workshop.facts.rows import read_lines
from service.workshop.facts.splits import is_held_out

# ---- tables

CAUSES = (
    "Fuse has blown", "Cable is loose", "Filter is dirty", "Battery is empty", "Belt is worn",
    "Fan is blocked", "Valve is closed", "Sensor is defective", "Wrong voltage", "Tank is empty",
)  # fmt: skip
REMEDIES = (
    "Replace the fuse", "Tighten the cable", "Clean the filter", "Charge the battery",
    "Replace the belt", "Remove the dust", "Open the valve", "Call the customer service",
    "Check the socket", "Fill the tank", "Switch it off for 10 minutes",
)  # fmt: skip
SUBJECTS: dict[str, tuple[str, ...]] = {
    "product": ("Desk", "Chair", "Lamp", "Monitor", "Router", "Drill", "Pump", "Filter", "Cable"),
    "office": ("Lisbon", "Oslo", "Graz", "Lyon", "Turin", "Leeds", "Porto", "Gdansk", "Utrecht"),
    "department": ("Finance", "Sales", "Legal", "Support", "Purchasing", "Logistics", "Research"),
    "plan": ("Basic", "Team", "Business", "Premium", "Starter", "Enterprise", "Student", "Pro"),
    "position": ("Analyst", "Manager", "Technician", "Driver", "Trainee", "Director", "Nurse"),
    "city": ("Paris", "Madrid", "Berlin", "Rome", "Vienna", "Zurich", "London", "Warsaw", "Prague"),
    "course": ("First aid", "Fire safety", "Data protection", "Forklift", "Welding", "Excel"),
    "fault": (
        "No picture",
        "Error E12",
        "Paper jam",
        "Strong vibration",
        "Oil leak",
        "No hot water",
        "Burning smell",
        "Slow start",
        "Loud hum",
        "Red light",
    ),
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
        "cause": rng.choice(CAUSES),
        "remedy": rng.choice(REMEDIES),
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
    "Opens at": "time", "Begins": "time", "Cause": "cause", "Remedy": "remedy",
}  # fmt: skip
ASKED = (
    "What is the {header} of {row}?", "What is the {header} for {row}?", "{header} of {row}?",
    "What {header} does {row} have?", "Which {header} applies to {row}?",
    "Tell me the {header} for the {kind} {row}.", "{row}: what is the {header}?",
)  # fmt: skip
BY_FORM = {
    "cause": ("What causes {row}?", "Why does {row} occur?", "What is the reason for {row}?"),
    "remedy": (
        "What should be done about {row}?",
        "What helps against {row}?",
        "How is {row} repaired?",
        "What is to be done in case of {row}?",
    ),
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
        return (no_answer(_ask(kind, name, asked, rng), "", text),)
    spans: tuple[tuple[int, int], ...] = (cells[name, asked],)
    question = _ask(kind, name, asked, rng)
    value = text[slice(*spans[0])]
    if rng.random() < 0.2 and text.count(value) == 1:  # the other way round: the row of a value
        question = f"Which {kind} has the {asked.lower()} {value}?"
        spans = places([name], text)[:1]
    right = Example(question, "", text, "span", spans)
    if rng.random() < 0.35:
        rest = names[size : min(size + 4, len(names) - 1)]
        return right, no_answer(question, "", _table(kind, rest, headers, rng)[0])
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


# ---- rules that say yes or no

WHO = (
    "Employees", "Visitors", "Members", "Tenants", "Guests", "Students", "Drivers", "Trainees",
    "Contractors", "Managers", "Customers", "Parents",
)  # fmt: skip
DEEDS = (
    "park in the yard", "bring dogs", "use the gym", "work on Sundays", "smoke on the terrace",
    "carry over unused days", "pay by card", "take photographs", "invite guests",
    "store bicycles in the cellar", "use the lift", "borrow tools", "install software",
    "print in colour", "enter the laboratory", "wear sandals", "leave before four o'clock",
    "order lunch", "share passwords", "swap shifts", "travel first class", "keep plants",
    "cancel free of charge", "use private phones", "sell tickets", "open the windows at night",
)  # fmt: skip
ALLOWED = (
    "{who} may {deed}.", "{who} are allowed to {deed}.", "{who} can {deed}.",
    "{who} have the right to {deed}.", "{who} may {deed} at any time.",
)  # fmt: skip
FORBIDDEN = (
    "{who} may not {deed}.", "{who} must not {deed}.", "{who} are not allowed to {deed}.",
    "It is forbidden for {low} to {deed}.", "{who} may never {deed}.", "{who} cannot {deed}.",
    "{who} are not permitted to {deed}.",
)  # fmt: skip
MAY = (
    "May {low} {deed}?", "Can {low} {deed}?", "Are {low} allowed to {deed}?",
    "Do {low} have the right to {deed}?",
)  # fmt: skip
THINGS = (
    ("warranty", "cover", ("batteries", "damage by water", "scratches", "the motor", "labour")),
    ("fee", "include", ("lunch", "the material", "insurance", "a parking place", "the exam")),
    ("price", "include", ("delivery", "installation", "value added tax", "a spare wheel")),
    ("contract", "contain", ("a penalty", "a trial period", "a price list", "a deadline")),
    ("rent", "include", ("heating", "water", "electricity", "a cellar", "cleaning")),
)
COVERS = ("The {thing} {verb}s {part}.", "The {thing} also {verb}s {part}.")
COVERS_NOT = (
    "The {thing} does not {verb} {part}.", "It does not {verb} {part}.",
    "The {thing} {verb}s everything except {part}.",
)  # fmt: skip
HOUSES = ("main building", "annex", "north hall", "branch in Leeds", "hotel", "warehouse", "school")
ROOMS = ("canteen", "lift", "gym", "car park", "library", "kitchen", "nursery", "sauna", "pool")
HAS = ("There is a {room} in the {house}.", "The {house} has a {room}.")
HAS_NOT = ("There is no {room} in the {house}.", "The {house} has no {room}.")


def made_up_rules(count: int, rng: random.Random) -> list[Group]:
    """Return questions that a sentence of a passage answers with yes or no, as many each. A quarter
    cannot be answered."""
    return [_about_rules(rng) for _ in range(count)]


def _about_rules(rng: random.Random) -> Group:
    (key, question, sentence, kind), *others = (_rule(rng) for _ in range(rng.randint(3, 7)))
    lines = [said for other, _, said, _ in others if other != key]
    if rng.random() < 0.25:
        return (no_answer(question, "", " ".join(lines)),)
    lines.insert(rng.randint(0, len(lines)), sentence)
    return (Example(question, "", " ".join(lines), "yes" if kind else "no"),)


def _rule(rng: random.Random) -> tuple[set[str], str, str, bool]:
    """Return what a rule is about, a question, a sentence that answers it, and whether by yes."""
    kind, form = rng.random() < 0.5, rng.random()
    if form < 0.55:
        who = rng.choice(WHO)
        words = {"who": who, "low": who.lower(), "deed": rng.choice(DEEDS)}
        said, asked = rng.choice(ALLOWED if kind else FORBIDDEN), rng.choice(MAY)
    elif form < 0.8:
        thing, verb, parts = rng.choice(THINGS)
        words = {"thing": thing, "verb": verb, "part": rng.choice(parts)}
        said, asked = rng.choice(COVERS if kind else COVERS_NOT), "Does the {thing} {verb} {part}?"
    else:
        words = {"house": rng.choice(HOUSES), "room": rng.choice(ROOMS)}
        said = rng.choice(HAS if kind else HAS_NOT)
        asked = rng.choice(("Is there a {room} in the {house}?", "Does the {house} have a {room}?"))
    return set(words.values()), asked.format(**words), said.format(**words), kind


# ---- facts of encyclopaedia passages

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = rf"(?:\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}}|\d{{4}})"
_LIFE = re.compile(
    rf"[^()]{{3,60}}\((?:[^();,\d]*[;,] ?)? ?(?:born )?(?P<born>{_DATE})"
    rf"(?: ?[–-] ?(?P<died>{_DATE}))? ?\)"
)
_FILM = re.compile(
    r"[^.]{2,80} is an? (?P<year>\d{4}) [^.]{0,80}?\bfilm\b[^.]{0,120}?\bdirected by "
    r"(?P<by>[A-Z][\w.'’-]+(?: [A-Z][\w.'’-]+){1,3})"
)
_PLACE = r"(?P<place>[A-Z][\w'’-]+(?:,? [A-Z][\w'’-]+){0,3})"
_BORN = re.compile(rf"\bborn (?:on [^.,]{{0,40}} )?(?:in|at) {_PLACE}")
_DIED = re.compile(rf"\bdied (?:on [^.]{{0,40}} )?(?:in|at) {_PLACE}")
_FACTS = (
    (_LIFE, "born", ("When was {title} born?", "What is the date of birth of {title}?")),
    (_LIFE, "died", ("When did {title} die?", "On what date did {title} die?")),
    (_FILM, "year", ("When was {title} released?", "In which year did {title} come out?")),
    (_FILM, "by", ("Who directed {title}?", "Who is the director of {title}?")),
    (_BORN, "place", ("Where was {title} born?", "What is the place of birth of {title}?")),
    (_DIED, "place", ("Where did {title} die?", "What is the place of death of {title}?")),
)
_BRACKETS = re.compile(r" \([^()]*\)$")


def facts_of(corpus: Path, count: int, rng: random.Random) -> list[Group]:
    """Return questions about facts in the passages of `corpus` that are not held out; half of them
    beside a passage that a search finds and that does not tell it, or that alone."""
    passages = [row for row in read_lines(corpus) if not is_held_out(row["title"] or row["text"])]
    search = Search(passages)
    groups = [group for row in passages for group in _facts(row, search, rng)]
    return rng.sample(groups, min(count, len(groups)))


def _facts(row: dict[str, str], search: Search, rng: random.Random) -> Iterator[Group]:
    for pattern, name, forms in _FACTS:
        find = pattern.match if pattern in (_LIFE, _FILM) else pattern.search
        question = rng.choice(forms).format(title=_BRACKETS.sub("", row["title"]))
        if not (found := find(row["text"])):
            continue
        if not found[name]:  # alive
            yield (no_answer(question, row["title"], row["text"]),)
            continue
        spans = places([found[name].strip(" .")], row["text"])
        right = Example(question, row["title"], row["text"], "span", spans)
        chance = rng.random()
        beside = [each for each in search.near(question) if each["title"] != row["title"]][:2]
        if chance < 0.5 or not beside:
            yield (right,)
            continue
        wrong = rng.choice(beside)
        other = no_answer(question, wrong["title"], wrong["text"])
        yield (other,) if chance < 0.65 else (right, other)


# ---- a small set


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
