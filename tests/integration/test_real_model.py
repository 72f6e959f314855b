"""Every loop and route on a real instruct model that is not ours, on three engines.

SmolLM2-135M-Instruct follows long prompts badly, which makes it a good tester. What it answers is
not looked at; that every answer deserves its `answered`, its citations and its flags is. It runs in
the process, on a real vLLM with our plugin, and, without signals, on llama.cpp's own OpenAI server.
CONTRIBUTING.md says what each needs. All cases of an engine and a template set are asked at once;
each case is a test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from service.answer.events import StepEnd
from service.core.domain import Problem
from service.core.errors import EngineRefusal, LoopUnavailable, RevelatorError
from service.core.settings import EngineSettings, Settings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.openai import OpenAIGenerator
from service.prompts.templates import TemplateSet
from service.runtime import open_runtime
from tests.support.claims import Told, flags_of, problems
from tests.support.llama_cpp import llama_server
from tests.support.real_cases import (
    CALLS,
    FEW,
    RETRIEVALS,
    ask,
    ask_all,
    make_cases,
    make_sample_cases,
    make_unknown_cases,
    settings_for,
)
from tests.support.real_engines import check_choices, check_schema, check_stop
from tests.support.smollm2 import smollm2_folder, smollm2_gguf
from tests.support.vllm import Vllm, vllm_server
from tests.support.vllm_plugin import FLAGS, plugin_environment

pytestmark = pytest.mark.timeout(600)
T = TypeVar("T")
CASES, UNKNOWN, SAMPLED = make_cases(), make_unknown_cases(), make_sample_cases()
# The quickest engine is asked in both sets of templates, and questions without a route too.
ASKED = [("local", "compact"), ("vllm", "full"), ("vllm", "compact"), ("llama_cpp", "full")]


@dataclass(frozen=True)
class Asked:
    """What came of every case on one engine and one template set."""

    engine: str
    templates: TemplateSet
    settings: Settings
    results: dict[str, Told | Problem | RevelatorError]

    def told(self, name: str) -> Told:
        result = self.results[name]
        assert isinstance(result, Told), f"{name}: {result!r}"
        return result


@pytest.fixture(scope="module")
def local(request: pytest.FixtureRequest) -> dict[str, Any]:
    """vLLM starts meanwhile, where there is one: most of a start keeps one core busy."""
    if "VLLM_PYTHON" in os.environ:
        request.getfixturevalue("vllm_started")
    return {"kind": "local", "model": str(smollm2_folder())}


@pytest.fixture(scope="module")
def vllm_started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    folder = tmp_path_factory.mktemp("vllm")
    model = str(smollm2_folder())
    options = ["--model", model, *FLAGS, "--enable-prefix-caching", "--max-model-len", "4096"]
    options += ["--scheduling-policy", "priority", "--max-num-seqs", "16"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))  # else one is left to the rest
    environment = {**plugin_environment(folder), "VLLM_CPU_KVCACHE_SPACE": "2"}
    environment["VLLM_CPU_OMP_THREADS_BIND"] = cores
    with vllm_server(folder / "log", *options, environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def vllm(vllm_started: Vllm) -> dict[str, Any]:
    vllm_started.wait()
    return {"kind": "vllm", "urls": [vllm_started.url]}


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with llama_server(smollm2_gguf(), tmp_path_factory.mktemp("llama") / "log") as url:
        yield {"kind": "openai", "urls": [url], "timeout_s": 280.0}


@pytest.fixture(scope="module", params=["local", "vllm", "llama_cpp"])
def engine(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=ASKED, ids="-".join)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    name, templates = request.param
    values = request.getfixturevalue(name)
    settings = settings_for(values, templates, tmp_path_factory.mktemp("data"))
    cases = CASES | UNKNOWN | (SAMPLED if name == "vllm" else {})
    results = asyncio.run(ask_all(settings, list(cases.values())))
    return Asked(name, TemplateSet(templates), settings, results)


@pytest.mark.parametrize("name", CASES)
def test_an_answer_deserves_what_it_claims(asked: Asked, name: str) -> None:
    deserves(asked, name)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_answer_deserves_what_it_claims_whatever_is_asked(asked: Asked, name: str) -> None:
    deserves(asked, name)


@pytest.mark.parametrize("asked", [pair for pair in ASKED if pair[0] == "vllm"], indirect=True)
@pytest.mark.parametrize("name", SAMPLED)
def test_an_answer_to_people_deserves_what_it_claims(asked: Asked, name: str) -> None:
    deserves(asked, name)


def deserves(asked: Asked, name: str) -> None:
    if asked.engine == "llama_cpp" and name.endswith("dragin"):
        assert isinstance(asked.results[name], LoopUnavailable)
        return
    told = asked.told(name)
    assert problems(told, asked.templates, asked.settings.answers.no_answer_text) == []
    usage = told.body.usage
    assert usage.llm_calls <= CALLS
    assert usage.retrievals <= RETRIEVALS


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_nothing_is_found_nothing_is_answered(asked: Asked, name: str) -> None:
    if asked.engine == "llama_cpp" and name.endswith("dragin"):
        return
    told = asked.told(name)
    if told.passages():  # for words of a draft, or of what Auto-RAG asks next
        assert name in ("unknown-autorag", "unknown-dragin")
        return
    assert not told.body.citations
    if told.body.usage.retrievals:
        assert not told.body.answered
    else:
        assert not told.body.answered or "closed_book" in flags_of(told.body)


def test_usage_is_never_missing(asked: Asked) -> None:
    told = [result for result in asked.results.values() if isinstance(result, Told)]
    ends = [event for one in told for event in one.events if isinstance(event, StepEnd)]
    spent = [end.usage for end in ends if end.usage.llm_calls]
    assert spent
    assert all(usage.prompt_tokens > 0 for usage in spent)
    assert any(usage.completion_tokens > 0 for usage in spent)


def test_only_dragin_counts_generations(asked: Asked) -> None:
    for name, result in asked.results.items():
        if isinstance(result, Told):
            counted = result.body.usage.generations is not None
            assert counted == name.endswith("dragin"), name


def test_tight_limits_hold(engine: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    limits = {"max_llm_calls": 3, "max_retrievals": 2, "timeout_s": 300.0}
    settings = settings_for(engine[1], "full", tmp_path, limits=limits)

    async def run() -> Told | Problem | RevelatorError:
        async with open_runtime(settings) as runtime:
            return await ask(runtime, CASES["compound-anrag"], **FEW)

    told = asyncio.run(run())
    assert isinstance(told, Told), repr(told)
    assert told.body.usage.llm_calls <= 3
    assert told.body.usage.retrievals <= 2
    assert told.body.stopped_by == "budget"


# ---- llama.cpp's server itself


def with_llama(values: dict[str, Any], call: Callable[[OpenAIGenerator], Awaitable[T]]) -> T:
    async def run() -> T:
        generator = OpenAIGenerator("llama", EngineSettings.model_validate(values))
        try:
            await generator.check()
            return await call(generator)
        finally:
            await generator.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("check", [check_choices, check_schema, check_stop])
def test_llama_cpp_constrains_and_stops(
    llama_cpp: dict[str, Any], check: Callable[[OpenAIGenerator], Awaitable[None]]
) -> None:
    with_llama(llama_cpp, check)


def test_llama_cpp_says_why_a_prompt_is_refused(llama_cpp: dict[str, Any]) -> None:
    request = GenerationRequest(messages=(Message("user", "word " * 9000),), max_tokens=4)
    with pytest.raises(EngineRefusal, match="exceeds the available context size"):
        with_llama(llama_cpp, partial(complete, request=request))
