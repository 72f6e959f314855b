"""The extractive reader: what it makes of scores, and that bad input has a clear end."""

# ruff: noqa: E402 - the imports below need what the skips look for.

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import need

torch = need("torch", "transformers", "accelerate", "onnxscript")

from service.answer.fold import collect
from service.answer.request import AnswerRequest
from service.checks import warm
from service.core.domain import Answer, Passage
from service.core.errors import ConfigurationError
from service.core.settings import RoleSettings, Settings
from service.encoders.answers import Candidate, best_of
from service.encoders.extractor import (
    MOST_WINDOWS,
    Extractor,
    ExtractorCard,
    nearest_windows,
    open_extractor,
)
from service.encoders.in_process import open_onnx
from service.encoders.windows import Windows
from service.retrieval.base import anyone
from service.text.tables import read_tables
from service.text.wordpiece import minilm_tokenizer
from service.workshop.recipes.extractor import export_extractor, open_network, save_network
from tests.support.asking import PASSAGES, ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator
from tests.unit.workshop.recipes.rows import write_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader with small random weights."""
    base = write_encoder(tmp_path_factory.mktemp("base"))
    out = tmp_path_factory.mktemp("reader")
    network = open_network(base, 2)
    save_network(network, base, out)
    export_extractor(network, ExtractorCard(longest=96, threshold=0.0), out)
    return out


def passage(text: str, title: str = "") -> Passage:
    return Passage(passage_id=f"{title} {text}"[:20], title=title, text=text)


def candidate(
    text: str,
    right: dict[str, float],
    question: str,
    kinds: tuple[float, ...] = (1, 0, 0, 0),
) -> list[str]:
    """The answer where the scores of start and end are high at some words of the text."""
    ((window,),) = Windows(minilm_tokenizer()).cut(question, [("", text)], 512)
    places = np.full((len(window.ids), 2), -5.0)
    for words, score in right.items():
        start = text.index(words)
        inside = [
            n for n, (a, b) in enumerate(window.spans) if start <= a and b <= start + len(words)
        ]
        places[window.first + inside[0], 0] = places[window.first + inside[-1], 1] = score
    (tabled,) = read_tables(question, [text])
    best = best_of(0, window, places, np.array(kinds, float), tabled, question)
    assert best is not None
    return [text[a:b] for a, b in best.spans] if best.kind == "span" else [best.kind]


ROWS = """Courses 2025.
Course: First aid; Place: Oslo; Fee: free.
Course: Welding; Place: Porto; Fee: 650 EUR.
Course: Forklift; Place: Oslo; Fee: 420 EUR.
Parts.
Part: Seal; Fits: HP-20, HP-35; Task: Grease it with 15 g of the oil that the supplier sends.
"""


NAMES = "Its members are Nina Dahl, Peter Holm and Aisha Rahman. Ben Lind is not."
PUMP = "It was late. The pump stopped because its seal broke. It was replaced."


@pytest.mark.parametrize(
    ("text", "right", "question", "answer"),
    [
        ("It costs 40 EUR.", {"40 EUR": 5}, "What does it cost?", ["40 EUR"]),
        (
            NAMES,
            {"Peter Holm": 5, "Nina Dahl": 4, "Aisha Rahman": 4.5, "Ben Lind": 4},
            "Who are the members?",
            ["Nina Dahl", "Peter Holm", "Aisha Rahman"],
        ),
        (NAMES, {"Peter Holm": 5, "Nina Dahl": 4}, "Who is the second member?", ["Peter Holm"]),
        (
            ROWS,
            {"Forklift": 5, "First aid": 4, "420 EUR": 4},
            "Which courses take place in Oslo?",
            ["First aid", "Forklift"],
        ),
        # the row of what is asked, though the model prefers another
        (ROWS, {"420 EUR": 5, "free": 4}, "What does the course First aid cost?", ["free"]),
        (ROWS, {"HP-20": 5}, "Which pump does the seal fit?", ["HP-20, HP-35"]),
        (ROWS, {"Fee: 650 EUR": 5}, "What is the fee of Welding?", ["650 EUR"]),
        ("By post.\n\nHome", {"post.\n\nHome": 5}, "How is it sent?", ["post."]),
        (ROWS, {"Seal": 1, "15 g": 5}, "How much grease?", ["15 g"]),
        (ROWS, {"HP-35; Task: Grease": 5}, "What does a seal fit?", ["HP-20, HP-35"]),
        (ROWS, {"650 EUR": 5}, "What are the fees?", ["free", "650 EUR", "420 EUR"]),
        # the whole sentence
        (
            PUMP,
            {"its seal broke": 5},
            "Why did the pump stop?",
            ["The pump stopped because its seal broke."],
        ),
    ],
)
def test_an_answer_is_the_best_place_or_the_parts_of_a_list(
    text: str, right: dict[str, float], question: str, answer: list[str]
) -> None:
    assert candidate(text, right, question) == answer


@pytest.mark.parametrize(
    ("word", "question", "kinds", "answer"),
    [
        ("allowed", "Is it allowed?", (0, 2, 1, 0), "yes"),
        ("allowed", "Is it allowed or not?", (0, 2, 1, 0), "allowed"),
        ("allowed", "Is it allowed?", (3, 2, 1, 0), "yes"),
        ("forbidden", "Is it allowed?", (0, 1, 2, 0), "no"),
        ("allowed", "What is it?", (0, 2, 1, 0), "allowed"),
    ],
)
def test_yes_and_no_answer_questions_that_ask_for_them(
    word: str, question: str, kinds: tuple[float, ...], answer: str
) -> None:
    assert candidate(f"It is {word}.", {word: 5}, question, kinds) == [answer]


async def test_every_span_is_a_copy_and_bad_input_has_a_clear_end(folder: Path) -> None:
    reader = Extractor(folder)
    assert (await reader.read("Who?", [])).kind == "none"
    assert (await reader.read("Who?", [passage("  ")])).kind == "none"
    assert (await reader.read(" ", [passage("Anna lives in Rome.")])).kind == "none"
    rows = " ".join(f"Article: Pump {n}; Price: {n} EUR." for n in range(1000))
    long = "Anna lives in Rome, near the river. " * 2900  # 100 kB
    odd = "[CLS] [SEP] \x00 \u202e ﷽ 漢字 🏳️‍🌈"
    for text in (rows, long, odd, "x" * 30_000):
        shown = [passage(""), passage(text, "A title")]
        reading = await reader.read("How much does the pump 5 cost?", shown)
        assert reading.passage == 1
        assert reading.answer == ", ".join(text[a:b] for a, b in reading.spans)
        assert 0 <= reading.score <= 1
        assert reading.pieces <= MOST_WINDOWS * 96
    endless = "Which " + "pump " * 500 + "costs 5 EUR?"  # leaves room for text and moves on
    assert (await reader.read(endless, [passage(rows, "title " * 100)])).passage == 0


async def test_passages_that_disagree_are_both_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Candidate(n, "span", ((0, 2),), 9.0, 5.0, 0.0) for n in range(2)]
    monkeypatch.setattr("service.encoders.extractor._Model.candidates", lambda *_: (found, 9))
    reading = await Extractor(folder).read("How many?", [passage("28 days"), passage("32 days")])
    assert (reading.answer, reading.kind, reading.rival) == ("28 or 32", "span", (1, ((0, 2),)))


async def test_64_reads_at_once_each_have_their_own_answer(folder: Path) -> None:
    reader = Extractor(folder)
    texts = [f"Person {n} lives in house {n}." for n in range(64)]
    readings = await asyncio.gather(*[
        reader.read(f"Where does person {n} live?", [passage(text)])
        for n, text in enumerate(texts)
    ])  # fmt: skip
    for text, reading in zip(texts, readings, strict=True):
        assert reading.answer in text


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("model.onnx", b"\x08\x0a cut short", "model.onnx is not a model"),
        ("tokenizer.json", b"{", "tokenizer.json cannot be read"),
        ("extractor.json", b'{"format": 9}', "extractor.json: "),
        ("model.onnx", None, "model.onnx is missing"),
    ],
)
async def test_weights_that_are_cut_short_or_missing_are_named(
    folder: Path, tmp_path: Path, file: str, content: bytes | None, told: str
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    if content is None:
        (tmp_path / "copy" / file).unlink()
    else:
        (tmp_path / "copy" / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=told):
        await Extractor(tmp_path / "copy").read("Who?", [passage("Anna.")])


def test_of_many_windows_those_that_share_rare_words_with_the_question_are_read() -> None:
    text = "The pump is blue and has a motor. " * 400 + "Its guarantee lasts 24 months."
    (cut,) = Windows(minilm_tokenizer()).cut("How long is the guarantee?", [("", text)], 64)
    kept = nearest_windows([(0, window) for window in cut], 4)
    assert len(cut) - 1 in kept
    assert len(kept) == 4


def test_the_exported_mpnet_computes_what_torch_computes(tmp_path: Path) -> None:
    network = open_network(write_encoder(tmp_path, "mpnet"), 2).eval()
    torch.nn.init.normal_(network.encoder.encoder.relative_attention_bias.weight)
    ids, mask = torch.randint(3, 999, (2, 300)), torch.ones(2, 300, dtype=torch.long)
    ids[0, 200:], mask[0, 200:] = 1, 0
    with torch.inference_mode():
        places, kinds = network(ids, mask)
    export_extractor(network, ExtractorCard(longest=96), tmp_path)
    session = open_onnx(tmp_path / "model.onnx", 1)
    made = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    real = mask.bool().numpy()
    assert np.corrcoef(made[0][real].ravel(), places.numpy()[real].ravel())[0, 1] > 0.999
    assert np.abs(made[1] - kinds.numpy()).max() < 0.05


async def test_a_deployment_reads_with_the_folder_that_its_settings_name(folder: Path) -> None:
    settings = Settings.model_validate({"roles": {"reader": {"encoder": str(folder)}}})
    engine = ScriptedGenerator()
    async with open_scripted(
        settings, engines={"default": engine}, retriever=ScriptedRetriever()
    ) as runtime:
        assert [check for check in await warm(runtime) if not check.ok] == []
        request = AnswerRequest(question="Who composed Norma?", route="single")
        prepared = await runtime.prepare(request, anyone)
        body = await collect(runtime.ask(prepared))
    assert isinstance(body, Answer)
    assert any(body.answer in each.text for each in PASSAGES)
    assert (body.usage.llm_calls, body.supported) == (1, True)
    assert body.confidence is not None
    assert body.usage.prompt_tokens > 20


def test_a_folder_without_an_extractor_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = RoleSettings(encoder=tmp_path)
    missing = r"roles\.reader\.encoder: there is no extractor at"
    with pytest.raises(ConfigurationError, match=missing):
        open_extractor(settings)
    assert open_extractor(RoleSettings(encoder="none"), small=True) is None
    assert open_extractor(RoleSettings()) is None
