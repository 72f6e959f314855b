"""`synthesize embedded`: served prompts, nothing that is held out, the same rows each time."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.core.errors import InvalidRequest
from service.prompts.quoting import quote
from service.prompts.templates import NO_ANSWER, Pair, PassageText, TemplateSet
from service.strategies.drafting.layout import opening_layout
from service.strategies.revelator.roles import ROUTE_LABELS
from service.workshop.facts.corpora import read_lines
from service.workshop.facts.names import Names
from service.workshop.facts.questions import Maker
from service.workshop.facts.rows import TrainingRow, read_rows
from service.workshop.facts.splits import is_held_out
from service.workshop.synthesis.embedded.mixture import SHARES, Mixture, alike
from service.workshop.synthesis.embedded.routes import Owners
from service.workshop.synthesis.embedded.sets import Sets, short_answer
from tests.unit.workshop.synthesis.embedded.sets import write_sets

SIZE = 700
PRONOUNS = {"it", "its", "he", "his", "she", "her", "they", "their", "them"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[TrainingRow]:
    return list(islice(Mixture(folder, seed=3).rows(), SIZE))


def of(rows: list[TrainingRow], task: str) -> list[tuple[str, str]]:
    return [(r.messages[0].content, r.messages[-1].content) for r in rows if r.task == task]


def test_every_role_has_its_share_of_the_text(rows: list[TrainingRow]) -> None:
    text, before = Counter[str](), ""
    for row in rows:
        prompt = row.messages[0].content
        text[row.task] += sum(len(message.content) for message in row.messages)
        text[row.task] -= alike(prompt, before)  # passages that several questions share
        before = prompt
    whole = sum(text.values())
    assert text.keys() == SHARES.keys()
    for task, share in SHARES.items():
        assert text[task] / whole == pytest.approx(share, abs=0.01), task


def test_the_same_seed_gives_the_same_rows_and_another_gives_others(folder: Path) -> None:
    def drawn(seed: int) -> list[str]:
        return [r.model_dump_json() for r in islice(Mixture(folder, seed=seed).rows(), 60)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_another_process_draws_the_same_rows(folder: Path) -> None:
    """Of sets of texts the order differs from process to process."""
    draw = (
        "import hashlib; from itertools import islice; from pathlib import Path\n"
        "from service.workshop.synthesis.embedded.mixture import Mixture\n"
        f"rows = islice(Mixture(Path({str(folder)!r}), seed=3).rows(), 400)\n"
        "print(hashlib.sha256(''.join(r.model_dump_json() for r in rows).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", draw], env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


def test_nothing_held_out_is_in_a_row(folder: Path, rows: list[TrainingRow]) -> None:
    assert all(row.side == "train" for row in rows)
    held = [
        line["text"]
        for line in read_lines(folder / "squad_train" / "corpus.jsonl")
        if is_held_out(line["title"])
    ]
    assert len(held) > 20
    shown = "\n".join(row.messages[0].content for row in rows)
    assert not [text for text in held if text in shown]


def test_an_untitled_passage_is_split_by_its_text(folder: Path) -> None:
    passages = Sets(folder).passages.values()
    untitled = [p for p in passages if not p.title]
    assert untitled
    assert not any(is_held_out(p.text) for p in untitled)
    known = {p.text for p in untitled}
    lines = read_lines(folder / "boolq" / "corpus.jsonl")
    left_out = [line["text"] for line in lines if line["text"] not in known]
    assert left_out
    assert all(map(is_held_out, left_out))


def test_prompts_are_those_that_serve(rows: list[TrainingRow]) -> None:
    templates = TemplateSet("compact")
    prompts = {task: [prompt for prompt, _ in of(rows, task)] for task in SHARES}
    for row in rows:
        head = templates.render("route", question="") if row.task == "route" else ""
        assert row.messages[0].content.startswith(head.partition("Query")[0])
    shown = templates.answer("Who?", [PassageText("T", "a b")])
    assert all(p.startswith(shown.partition("\n")[0] + "\nDoc1: ") for p in prompts["answer"])
    assert any("Doc3: " in p for p in prompts["answer"])
    assert len({p for ps in prompts.values() for p in ps}) == len(rows), "no prompt comes twice"


def test_targets_are_what_the_roles_read(rows: list[TrainingRow]) -> None:
    assert {target for _, target in of(rows, "route")} == set(ROUTE_LABELS.values())
    assert {target for _, target in of(rows, "relevance")} == {"true", "false"}
    assert {target for _, target in of(rows, "ending")} == {"yes", "no"}
    named_again = 0
    for prompt, target in of(rows, "decompose"):
        parts = json.loads(target)["decomposition"]
        asked = re.findall(r"\w+", prompt.lower())
        assert parts
        assert parts[0].rstrip("?").lower() in prompt.lower()
        for part in parts[1:]:
            if part.rstrip("?").lower() not in prompt.lower():
                named_again += 1
                assert set(asked) & PRONOUNS, (prompt, part)
                assert not set(re.findall(r"\w+", part.lower())) & PRONOUNS, part
    assert named_again > 2


def test_comparisons_are_many_and_no_order_wins(folder: Path, rows: list[TrainingRow]) -> None:
    shown = TemplateSet("compact").final("Who?", [Pair("When?", "1964")])
    compared = of(rows, "comparison")
    assert len(compared) > 0.035 * len(rows), "6 % of the real sets' longer rows"
    assert all(p.startswith(shown.partition("Question: ")[0]) for p, _ in compared)
    draw = Mixture(folder, seed=3).draws["comparison"]
    sides, replies = Counter[bool](), Counter[str]()
    for row in (draw() for _ in range(1200)):
        assert isinstance(row, TrainingRow)
        first, _, second = row.question.partition(" or ")
        target = row.messages[-1].content
        replies[target] += 1
        if second and (target in first) is not (target in second):
            sides[target in first] += 1
    assert sides.total() > 400
    assert abs(sides[True] - sides[False]) < 0.1 * sides.total()
    assert abs(replies["yes"] - replies["no"]) < 0.1 * (replies["yes"] + replies["no"])
    assert 0.05 < replies[NO_ANSWER] / replies.total() < 0.12


def test_owners_questions_that_say_it_have_parts_that_name_it() -> None:
    owners = Owners(random.Random(4))
    for question, (first, second) in (owners.referring() for _ in range(300)):
        said = set(re.findall(r"\w+", question.lower()))
        assert said & PRONOUNS, question
        assert not set(re.findall(r"\w+", second.lower())) & PRONOUNS
        assert question.startswith(first.rstrip("?"))
        assert second.rstrip("?") not in question


def test_questions_on_one_subject_name_it_once(folder: Path) -> None:
    facts = Sets(folder).facts
    maker = Maker(facts, Names(facts), random.Random(6))
    for _ in range(200):
        made = maker.referring()
        subject = made.hops[0].fact.subject
        assert made.question.count(subject) == 1
        assert all(subject in hop.question for hop in made.hops)
        assert set(re.findall(r"\w+", made.question.lower())) & PRONOUNS


def test_reading_shows_one_to_four_passages_and_a_fifth_declines(rows: list[TrainingRow]) -> None:
    answers = of(rows, "answer")
    counts = Counter(prompt.count("\nDoc") for prompt, _ in answers)
    assert set(counts) == {1, 2, 3, 4}
    assert 0.3 < counts[1] / len(answers) < 0.65
    written = [row for row in rows if row.task == "answer" and row.provenance.written]
    assert len(written) > 0.8 * len(answers), "people's questions, not those made from facts"


def test_answers_stand_in_a_passage_or_none_does(rows: list[TrainingRow]) -> None:
    answers = of(rows, "answer")
    declined = [prompt for prompt, target in answers if target == NO_ANSWER]
    assert 0.1 < len(declined) / len(answers) < 0.35
    verbatim = [target in prompt.partition("Doc1")[2] for prompt, target in answers
                if target != NO_ANSWER]  # fmt: skip
    assert sum(verbatim) / len(verbatim) > 0.7, "others are yes, no and the made-up two-hop ones"


def test_answers_are_short_without_the_full_stop_of_some_sets() -> None:
    assert short_answer(["Catherine."]) == "Catherine"
    assert short_answer(["in the late 1990s", "1990s"]) == "1990s"
    assert short_answer(["Washington D.C."]) == "Washington D.C."
    assert short_answer([]) == ""


def test_owners_ask_in_words_that_training_lacks() -> None:
    seen, unseen = Owners(random.Random(1)), Owners(random.Random(1), unseen=True)
    known = {seen.single() for _ in range(3000)}
    new = {unseen.single() for _ in range(50)}
    assert len(known) > 1500
    assert not known & new


def test_a_folder_without_a_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no set squad_train"):
        Sets(tmp_path)


def test_the_command_writes_rows_that_train(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["synthesize", "embedded", "--input", str(folder), "--output", str(out)]
    result = CliRunner().invoke(app, [*words, "--teacher", "rules", "--limit", "40"])
    assert result.exit_code == 0, result.output
    assert len(list(read_rows(out))) == 40
    report = json.loads((tmp_path / "rows.report.json").read_text())
    assert sum(report["rows"].values()) == 40


def test_dialogues_of_autorag_end_with_an_answer_after_documents(rows: list[TrainingRow]) -> None:
    dialogues = [row for row in rows if row.task == "autorag"]
    assert dialogues
    for row in dialogues:
        first, *_, last = [m.content for m in row.messages if m.role == "assistant"]
        assert "Initial Query: " in first
        assert "Final Answer: " in last
        documents = [m.content for m in row.messages[2:] if m.role == "user"]
        assert all(text.startswith("Retrieved Document_") for text in documents)
        assert all(message.learn is (message.role == "assistant") for message in row.messages)


@pytest.mark.parametrize(
    "words", [[], ["--teacher", "rules", "--heldout"], ["--teacher", "rules", "--templates", "no"]]
)
def test_mistakes_are_one_line_and_exit_code_2(
    folder: Path, tmp_path: Path, words: list[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    line = ["synthesize", "embedded", "--input", str(folder), "--output", str(out), *words]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2, result.output
    assert not out.exists()


def test_questions_about_the_same_passages_follow_each_other(rows: list[TrainingRow]) -> None:
    written = [row for row in rows if row.provenance.written]
    prompts = [prompt for prompt, _ in of(written, "answer")]
    sheets = [prompt.rpartition("Question: ")[0] for prompt in prompts]
    places: dict[str, list[int]] = {}
    for place, sheet in enumerate(sheets):
        places.setdefault(sheet, []).append(place)
    shared = [found for found in places.values() if len(found) > 1]
    assert len(shared) > 20
    together = [found[-1] - found[0] == len(found) - 1 for found in shared]
    assert sum(together) > 0.9 * len(shared), "now and then a short sheet comes again"
    targets = dict(of(written, "answer"))
    kinds = [{targets[prompts[place]] == NO_ANSWER for place in found} for found in shared]
    assert {True, False} in kinds, "the same passages answer one question and not another"


def test_drafts_go_on_with_the_text_that_the_loop_shows(rows: list[TrainingRow]) -> None:
    templates = TemplateSet("compact")
    drafts = [row for row in rows if row.task == "dragin"]
    assert drafts
    assert all(row.raw for row in drafts)
    opening = opening_layout(templates, "", may_decline=True).shots()
    contexts = 0
    for row in drafts:
        prompt, rest = (message.content for message in row.messages)
        assert prompt.startswith(opening)
        asked = prompt.rpartition("\nQuestion: ")[2]
        question, _, written = asked.partition("\nAnswer:")
        assert question == quote(row.question)
        assert rest.startswith(" ")
        assert rest.endswith(".\n")
        assert (written + rest).count("So the answer is ") == 1
        contexts += "\nContext:\n[1] " in prompt
    assert 0.4 < contexts / len(drafts) < 0.9
