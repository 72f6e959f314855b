"""What reads a model's output, a question or a document takes linear time, whatever the text is.

The texts repeat what an expression can match, because almost-matches are what makes one slow.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import re
import re._parser as parser  # type: ignore[import-untyped]  # the parsed form has no public name
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.answer.evidence import bearing_sentence
from service.encoders.answers import form_of
from service.engines.reasoning import strip_thinking
from service.prompts.quoting import is_marker, quote
from service.prompts.templates import is_example
from service.retrieval.ingest.formats.tables import with_markdown_tables
from service.strategies import autorag_dialogue as turns
from service.strategies import chains, draft_text
from service.strategies.reading.answers import read_answer
from service.strategies.reading.questions import (
    parse_decomposition,
    parse_question,
    parse_route,
    parse_verdict,
)
from service.text import content_words, sentences
from service.text.grounding import bears, support
from service.text.wordpiece import count_pieces
from service.text.words import normal_words, spelt_words, word_spans

PACKAGES = ("text", "prompts", "answer", "encoders", "engines", "retrieval", "strategies", "api")
# Most expressions of these modules read only the beginning of a reply.
READ_IN_PART = {
    "service.strategies.reading.answers": 1_200,
    "service.strategies.reading.questions": 2_000,
}
READERS: dict[str, Callable[[str], Any]] = {
    "read_answer": read_answer,
    "parse_question": parse_question,
    "parse_decomposition": parse_decomposition,
    "parse_route": parse_route,
    "parse_verdict": parse_verdict,
    "autorag.read_turn": turns.read_turn,
    "autorag.read_turn at lines": lambda text: turns.read_turn(text, turns.AT_LINES),
    "is_looping": turns.is_looping,
    "self_ask.read_turn": chains.read_turn,
    "draft_text": lambda text: draft_text.stated_answer(f"{draft_text.PHRASE} {text}"),
    "strip_thinking": strip_thinking,
    "quote": quote,
    "is_marker": is_marker,
    "is_example": lambda text: is_example(text, text, text),
    "bears": lambda text: bears(text, text),
    "support": lambda text: support(text, text, [text]),
    "bearing_sentence": lambda text: bearing_sentence(f"a {text}", text, text),
    "form_of": form_of,
    "sentences": sentences,
    "content_words": content_words,
    "normal_words": normal_words.__wrapped__,
    "spelt_words": spelt_words,
    "word_spans": word_spans,
    "count_pieces": count_pieces,
    "with_markdown_tables": with_markdown_tables,
}
UNITS = [
    *" \n\ta1A.,([{*#-_\"'`\\|<&?é中",
    *("a ", "a\n", " \n", "A ", "a, ", "a. ", "A b. ", "U.S. ", "Mr. ", "it's ", "1,", "1. ", "- "),
    *("** ", "#\n", "\n#", "```", "```a\n", "|\n", "\\|", "a|", "<p>", "<p ", "</", "&#32;", '\\"'),
    *('["', "[1,", '{"a":', '{"answer": "', "[1]", "(doc1", "<think>", "</think>", "query ", "so "),
    *("answer:", "the answer is ", "\nanswer", "Question: ", "Final answer:\n", "note "),
    *("unknown ", "The ", "is the ", "a?\n", "1.a\n", "let me think\n", "1 + 1 = "),
]  # fmt: skip


ENOUGH_S = 0.02  # less says nothing
MOST_S = 3.0  # of the slowest; on an idle machine it takes a tenth of it


def seconds(read: Callable[[Any], Any], text: Any) -> float:
    """Processor time of this thread, which other processes hardly lengthen; nor does what other
    tests have left in memory, of which the garbage collector would go through all."""
    gc.disable()
    begin = time.thread_time()
    try:
        read(text)
        return time.thread_time() - begin
    finally:
        gc.enable()


def grows_too_fast(read: Callable[[Any], Any], begin: str, unit: str, end: str, size: int) -> bool:
    """Whether four times the text takes more than nine times as long: squared, it takes sixteen."""
    small, large = (begin + (unit * n)[:n] + end for n in (size // 4, size))
    if (first := seconds(read, large)) < ENOUGH_S:
        return False
    assert first < MOST_S, unit
    once, more = (min(seconds(read, text) for _ in range(3)) for text in (small, large))
    return more > ENOUGH_S and more > 9 * once


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_linear_time(name: str) -> None:
    read = READERS[name]
    for unit in UNITS:
        assert not grows_too_fast(read, "", unit, "!", 20_000), unit
        assert not grows_too_fast(read, '{"answer": "a ', unit, "", 20_000), unit
    for unit in UNITS[::8]:
        assert not grows_too_fast(read, "", unit, "", 100_000), unit


# ---- each expression by itself


def parts(tree: Any) -> Iterator[str]:
    """Yield texts that the parts of an expression match, shortest first."""
    whole = [""]
    for code, value in tree:
        found = list(one(str(code), value))
        yield from found
        whole = [left + right for left in whole[:2] for right in (found[:2] or [""])]
        yield from whole


def one(code: str, value: Any) -> Iterator[str]:
    match code:
        case "LITERAL":
            yield chr(value)
        case "NOT_LITERAL" | "ANY":
            yield from "a "
        case "IN":
            yield from (letter for letter in "a 1.A\n(*'-:" if re.fullmatch(charset(value), letter))
            yield from (chr(each) for kind, each in value if str(kind) == "LITERAL")
        case "BRANCH":
            for branch in value[1]:
                yield from parts(branch)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            yield from parts(value[2])
        case "SUBPATTERN":
            yield from parts(value[3])
        case "ASSERT" | "ASSERT_NOT":
            yield from parts(value[1])
        case "ATOMIC_GROUP":
            yield from parts(value)


def charset(value: Any) -> str:
    kinds = {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w"}
    text = ""
    for code, each in value:
        match str(code):
            case "NEGATE":
                text += "^"
            case "LITERAL":
                text += re.escape(chr(each))
            case "RANGE":
                text += f"{re.escape(chr(each[0]))}-{re.escape(chr(each[1]))}"
            case "CATEGORY":
                text += kinds.get(str(each).removeprefix("CATEGORY_"), r"\W")
    return f"[{text}]"


def patterns() -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    """Yield the compiled expressions of modules, and the methods by which the module uses each."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(
            importlib.import_module(f"service.{package}").__path__, f"service.{package}."
        ):
            yield from patterns_of(module.name)


def patterns_of(name: str) -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:  # an extra is not installed
        return
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    for key, value in vars(module).items():
        several = value if isinstance(value, tuple) else [value]
        for pattern in several:
            if isinstance(pattern, re.Pattern) and f"\n{key}" in source:
                yield name, pattern, set(re.findall(rf"\b{key}\.([a-z]+)\(", source))


def uses(pattern: re.Pattern[Any], called: set[str]) -> Iterator[Callable[[str], Any]]:
    coded = isinstance(pattern.pattern, bytes)
    if not called or {"match", "fullmatch"} & called:
        yield lambda text: pattern.match(text.encode() if coded else text)
        yield lambda text: pattern.fullmatch(text.encode() if coded else text)
    if {"search", "sub", "split", "findall", "finditer"} & called:
        yield lambda text: pattern.findall(text.encode() if coded else text)


def test_each_expression_takes_linear_time() -> None:
    slow, seen = list[tuple[str, str, str]](), set[re.Pattern[Any]]()
    for module, pattern, called in patterns():
        if pattern in seen:
            continue
        seen.add(pattern)
        flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
        matched = filter(None, dict.fromkeys(parts(parser.parse(pattern.pattern, flags))))
        size = READ_IN_PART.get(module, 10_000)
        for unit in [*" \n\ta1A,.(*", *list(matched)[:60]]:
            for use in uses(pattern, called):
                if grows_too_fast(use, "", unit, "!", size):
                    slow.append((module, str(pattern.pattern), unit))
    assert len(seen) > 100
    assert slow == []
