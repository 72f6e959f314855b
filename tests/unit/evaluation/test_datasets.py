"""Gold questions: each published format is told by its content and read by its own fields, and what
is wrong is named with its place. The samples in `tests/fixtures/datasets` are our own, in the form
of the published files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from service.evaluation.datasets import (
    DatasetError,
    GoldQuestion,
    load_file,
    named_file,
    read_datasets,
    read_question,
)
from service.retrieval.documents import content_id

SAMPLES = {path.stem: path for path in (Path(__file__).parents[2] / "fixtures/datasets").iterdir()}
HOTPOTQA, STRATEGYQA = (
    json.loads(SAMPLES[name].read_text(encoding="utf-8")) for name in ("hotpotqa", "strategyqa")
)
NQ_OPEN = [{"question": "who painted dawn", "answer": ["Anna Berg", "Berg"]}]
DIGITS = "1" * 4_301  # more than Python converts

# The fields of a row in our own form that tell its gold route.
ROUTED = {
    "complex": [
        *({"type": kind} for kind in ("bridge", "comparison", "bridge_comparison", "inference",
                                      "compositional", "2hop", "3hop1", "4hop3")),
        {"hops": [{"question": "a"}, {"question": "b"}]},
        {"kind": "complex"},
    ],
    "compound": [{"parts": ["a", "b"]}, {"sub_questions": []}, {"type": "bridge", "parts": ["a"]}],
    "direct": [{"choices": {"A": "x"}}, {"route": "direct", "type": "bridge"}],
    "single": [{"kind": "single"}],
    None: [{}, {"type": "factoid"}, {"type": 2}, {"type": None}, {"kind": "odd"}, {"hops": [{}]}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("route", "fields"), [(route, own) for route, found in ROUTED.items() for own in found]
)
def test_the_gold_route_of_our_own_form(
    route: str | None, fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({"question": "Q?", "answers": ["x"], **fields}))
    assert load_file(path)[0][0].route == route


def as_json(value: object) -> str:
    return json.dumps(value)


def as_lines(rows: Sequence[object]) -> str:
    return "\n".join(map(json.dumps, rows))


def titles(*names: str) -> frozenset[str]:
    return frozenset(names)


def passages(*texts: tuple[str, str]) -> frozenset[str]:
    return frozenset(content_id(title, text) for title, text in texts)


DAWN = passages(("Dawn", "Berg painted it."))
HARBOUR = passages(("Oslo Harbour", "Oslo has a harbour. It opened in 1907."))
CASES = {
    "squad": [("s1", ("1907", "in 1907"), "single", HARBOUR), ("s2", (), "single", HARBOUR)],
    "triviaqa": [("t1", ("Oslo", "Christiania"), "single", titles())],
    "hotpotqa": [("h1", ("Oslo",), "complex", titles("anna berg", "oslo"))],
    "2wiki": [("w1", ("Oslo",), "complex", titles("anna berg", "oslo"))],
    "musique": [
        ("2hop__1_2", ("Oslo", "Christiania"), "complex", DAWN),
        ("2hop__1_2-unanswerable", (), "complex", titles()),
    ],
    "iirc": [
        ("i1", ("Academy of Oslo", "the academy"), "complex",
         titles("anna berg", "academy of oslo")),
        ("i2", ("34",), "complex", titles()),
        ("i3", ("yes",), "complex", titles()),
    ],
    "strategyqa": [("y1", ("yes",), "complex", titles("Oslo-1", "Oslo-2", "Ship-4"))],
    "hipporag": [("r1", ("Anna Berg", "Berg"), None, DAWN)],
    "flashrag": [("dev_0", ("Oslo",), None, titles("anna berg", "oslo"))],
    "popqa": [("7", ("painter", "artist"), "single", titles("anna berg"))],
    "webquestions": [("1", ('Dawn "I"', "Dusk"), "single", titles())],
    "nq_open": [("1", ("Anna Berg", "Berg"), "single", titles())],
    "jsonl": [("1", ("1907 && Berg",), "compound", titles())],
}  # fmt: skip


def told(question: GoldQuestion) -> tuple[Any, ...]:
    gold = question.supporting | question.supporting_titles
    return question.id, question.answers, question.route, gold


@pytest.mark.parametrize("name", CASES)
def test_each_format_is_told_by_its_content(name: str) -> None:
    loaded, known = load_file(SAMPLES[name])
    assert known.name == name
    assert [told(question) for question in loaded] == CASES[name]
    assert loaded == load_file(SAMPLES[name], name)[0]


def test_aliases_of_2wiki_are_read_from_their_file(tmp_path: Path) -> None:
    path, aliases = tmp_path / "dev.json", tmp_path / "id_aliases.json"
    path.write_bytes(SAMPLES["2wiki"].read_bytes())
    row = {"Q_id": "Q585", "aliases": ["Christiania"], "demonyms": ["Oslovian"]}
    aliases.write_text(as_lines([{"Q_id": "Q1", "aliases": ["x"], "demonyms": []}, row]))
    assert load_file(path)[0][0].answers == ("Oslo", "Christiania", "Oslovian")
    (with_aliases,) = read_datasets([str(path)])
    assert with_aliases.as_json()["aliases"] == sha256(aliases.read_bytes()).hexdigest()
    aliases.write_text('{"Q_id": "Q585"}\n')
    with pytest.raises(DatasetError, match=r"id_aliases\.json:1: is not an object with Q_id"):
        load_file(path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("array", '[\n{"question": "Q?",\n "answer": "x"},\n{"question": ""}]',
         ": element 2: question: String should have at least 1 character"),
        ("cut short", '[{"question": "Q?", "answer": "x"},\n {"question": "Q', ":2: is not JSON: "),
        ("element", '[\n7]', ": element 1: is not a JSON object"),
        ("squad", as_json({"data": [{"paragraphs": [{"context": "c", "qas": [
            {"id": "1", "question": "Q?", "answers": []}]}]}]}),
         ": element 1: question 1: has no answer"),
        ("squad", as_json({"data": [{"paragraphs": [{"qas": []}]}]}),
         ": element 1: `context` is missing or not a string"),
        ("twice", as_lines([{**STRATEGYQA[0]}, {**STRATEGYQA[0]}]),
         ":2: the id 'y1' occurs earlier, at file:1"),
        ("twice in one line", as_json([HOTPOTQA[0], HOTPOTQA[0]]),
         ": element 2: the id 'h1' occurs earlier, at file: element 1"),
        ("facts", as_json([{**HOTPOTQA[0], "supporting_facts": "Oslo"}]),
         ": element 1: `supporting_facts` is neither a list of [title, sentence] nor an object"),
        *(("facts", as_lines([HOTPOTQA[0], {**HOTPOTQA[0], "supporting_facts": facts}]),
           ":2: `supporting_facts` is neither a list of [title, sentence] nor an object")
          for facts in ({"title": None}, {"title": "Oslo"}, [[["Oslo"], 0]])),
        *(("triviaqa", as_lines([{"Question": "Q?", "Answer": {"Value": "x", "Aliases": given}}]),
           ":1: `Aliases` is missing or not a list") for given in (None, "Oslo")),
        ("iirc", as_json([{"links": [], "questions": [{"answer": {}, "context": None}]}]),
         ": element 1: `context` is missing or not a list"),
        ("digits in an array", f'[{{"question": "Q?", "answer": "x"}},\n {{"id": {DIGITS}}}]',
         ":1: contains an integer with too many digits"),
        ("digits in a line", f'{{"question": "Q?", "answer": "x"}}\n{{"id": {DIGITS}}}',
         ":2: contains an integer with too many digits"),
        ("deep document", '{\n"data": ' + "[" * 100_000, ":1: is nested too deep"),
        ("two arrays", f"{as_json(HOTPOTQA)}\n\n{as_json(HOTPOTQA)}\n",
         ":3: is not JSON: Extra data"),
        ("popqa", f"id\tquestion\tpossible_answers\n1\tQ?\t{'x' * 131_073}\n",
         ":2: is not a row of a table: field larger than field limit"),
        ("popqa", "id\tquestion\tpossible_answers\n1\tQ?\t[broken\n",
         ":2: `possible_answers` is not a JSON list"),
        ("popqa", "id\tquestion\tpossible_answers\n1\tQ?\n", ":2: has 2 fields, but the first"),
        ("webquestions", as_json([{"utterance": "q", "targetValue": "(list)"}]),
         ": element 1: has no answer"),
        ("surrogate", '[{"id": "1", "question": "Q?", "reference": ["x"], "paragraphs": '
         '[{"title": "", "text": "\\ud83d"}]}]', ": element 1: a paragraph contains a lone"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(
    name: str, content: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    assert caught.value.problems[0].startswith(f"{path}{problem}"), caught.value.problems


def test_mixed_encodings_are_told_by_line_and_byte(tmp_path: Path) -> None:
    good, bad = as_lines(NQ_OPEN).encode(), '{"question": "é", "answer": ["x"]}'.encode("latin-1")
    path = tmp_path / "file"
    for content, place in (
        (b"%s\n%s" % (good, bad), ":2: is not UTF-8 at byte 14"),
        (b"[%s,\n%s]" % (good, bad), ":2: is not UTF-8 at byte 14"),
        (as_lines(NQ_OPEN).encode("utf-16"), ":1: is not UTF-8 at byte 0"),
    ):
        path.write_bytes(content)
        with pytest.raises(DatasetError) as caught:
            load_file(path)
        assert caught.value.problems == [f"{path}{place}"]


def test_beir_has_its_passages_from_the_qrels_and_says_what_is_missing(tmp_path: Path) -> None:
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels" / "test.tsv"
    qrels.parent.mkdir()
    qrels.write_text("query-id\tcorpus-id\tscore\nq1\tp1\t1\nq1\tp2\t0\n")
    row = {"_id": "q1", "text": "Where did Berg live?", "metadata": {"answer": "Oslo"}}
    queries.write_text(json.dumps(row))
    (question,) = load_file(queries)[0]
    assert (question.answers, question.supporting) == (("Oslo",), {"p1"})
    queries.write_text(json.dumps({**row, "metadata": {}}))
    for file, told in ((queries, "these queries have no answers"), (qrels, "no questions; name")):
        with pytest.raises(DatasetError, match=told):
            load_file(file)
    qrels.write_text("query-id\tcorpus-id\tscore\nq1\tp1\tmany\n")
    with pytest.raises(DatasetError, match=r"test\.tsv:2: is not a row"):
        load_file(queries)


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answer": "Rome"}, ("Rome",)),
        ({"answer": ["Rome", "Roma"]}, ("Rome", "Roma")),
        ({"answers": ["Rome"], "answer_aliases": ["Roma", "Rome"]}, ("Rome", "Roma")),
        ({"answer": "Rome", "answer_aliases": None}, ("Rome",)),
        ({"answer": True}, ("yes",)),
        ({"answer": False}, ("no",)),
        ({"answer": 1984}, ("1984",)),
        ({"answer": "B", "choices": {"A": "Oslo", "B": "Rome"}}, ("Rome",)),
        ({"answer": "Rome && 1984"}, ("Rome && 1984",)),
        ({"parts": ["Rome", ["1984", "in 1984"]]}, ("Rome && 1984",)),
    ],
)
def test_answers(row: dict[str, Any], answers: tuple[str, ...]) -> None:
    assert read_question({"question": "Q?"} | row, "1").answers == answers


def test_parts() -> None:
    joined = read_question({"question": "Q?", "answer": "Rome && 1984"}, "1")
    listed = read_question({"question": "Q?", "parts": ["Rome", ["1984", "in 1984"]]}, "1")
    assert joined.parts == (("Rome",), ("1984",))
    assert listed.parts == (("Rome",), ("1984", "in 1984"))
    assert listed.golds == ("Rome", "1984", "in 1984")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "is not JSON: "),
        (b'"text"', "is not a JSON object"),
        (b"[" * 100_000, "is n"),
        (b'{"answer": "x"}', "question: Field required"),
        (b'{"question": " ", "answer": "x"}', "question: the question is blank"),
        (b'{"question": 3, "answer": "x"}', "question: Input should be a valid string"),
        (b'{"question": "\\ud83d", "answer": "x"}', "question: Input should be a valid string"),
        (b'{"question": "%s", "answer": "x"}' % (b"x" * 4_001), "at most 4000 characters"),
        (b'{"question": "Q?"}', "has no answer"),
        (b'{"question": "Q?", "answer": ""}', "answer.0: String should have at least 1"),
        (b'{"question": "Q?", "answer": {"a": 1}}', "answer.0: Input should be a valid string"),
        (b'{"question": "Q?", "answers": [["x"]]}', "answers.0: Input should be a valid string"),
        (b'{"question": "Q?", "answer": NaN}', "answer.0: Input should be a valid string"),
        (b'{"question": "Q?", "parts": [-1e400]}', "parts.0.0: Input should be a valid string"),
        (b'{"question": "Q?", "answer": "x", "route": "multi"}', "route: Input should be 'direct'"),
        (b'{"question": "Q?", "answer": "x", "route": ["single"]}', "route: Input should be 'dir"),
        (b'{"question": "Q?", "answer": "x", "parts": "y"}', "parts: Input should be a valid list"),
        (b'{"question": "Q?", "answer": "x", "parts": [[]]}', "parts.0: Value should have at lea"),
        (b'{"question": "Q?", "answer": "x", "id": 1.5}', "id.constrained-str: Input should be"),
        (b'{"question": "Q?", "answer": "x", "id": "1"}', "occurs earlier, at bad.jsonl:1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"question": "Q?", "answer": "x"}\n\n' + line + b"\n")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}:3: ")
    assert what in problem


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n" * 30, encoding="utf-8")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == f"{path}: 10 more invalid lines"


@pytest.mark.parametrize("content", ["question,answer\nWho?,I\n", "Who?\n", ""])
def test_another_format_is_told_what_a_line_must_be(tmp_path: Path, content: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError) as caught:
        load_file(path)
    assert caught.value.problems[-1].startswith("Write a JSON object on each line")


def test_compressed_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    plain, packed = tmp_path / "d.jsonl", tmp_path / "d.jsonl.gz"
    plain.write_bytes(b'{"question": "Q?", "answer": "Rome"}\n')
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_file(packed)[0] == load_file(plain)[0]
    packed.write_bytes(gzip.compress(plain.read_bytes())[:-9])
    with pytest.raises(DatasetError, match=r"d\.jsonl\.gz: the compressed data is truncated"):
        load_file(packed)
    packed.write_bytes(plain.read_bytes())
    with pytest.raises(DatasetError, match=r"d\.jsonl\.gz cannot be read: the file name says"):
        load_file(packed)


def test_names_of_datasets(tmp_path: Path) -> None:
    plain = tmp_path / "squad" / "questions.jsonl"
    plain.parent.mkdir()
    plain.touch()
    odd = tmp_path / "a=b.jsonl"
    odd.touch()
    assert named_file(str(plain)) == ("squad", plain)
    assert named_file(str(odd)) == ("a=b", odd)
    assert named_file(f"mine={plain}") == ("mine", plain)
    assert named_file("hotpot_dev_distractor_v1.json")[0] == "hotpot_dev_distractor_v1"
    assert named_file("hotpot_dev_v1.json.gz")[0] == "hotpot_dev_v1"
    assert named_file("nq/dev.jsonl.zst")[0] == "nq"
