"""Prompts and Auto-RAG's mode follow the model where the settings do not name them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.answer.fold import collect
from service.answer.request import AnswerRequest
from service.checks import check_all, describe_roles, warm
from service.core.domain import Passage
from service.core.errors import ConfigurationError, LoopUnavailable
from service.core.settings import EngineSettings, Settings
from service.engines.base import Capabilities, Generator
from service.engines.factory import open_generator
from service.engines.in_process import UNKNOWN, TrainingNotes, read_training_notes
from service.prompts.templates import SHIPPED
from service.retrieval.base import anyone
from service.runtime import open_roles
from service.strategies.autorag import autorag_mode
from tests.stubs.openai_server import StubServer
from tests.stubs.tiny_compiled import COMPILED
from tests.support.asking import ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator
from tests.support.tiny import TINY, TINY_TEMPLATES

OURS = Capabilities(templates="compact", autorag="tuned", passages=1)


async def resolved(engine: Generator, **sections: Any) -> dict[str, str]:
    """Each role's template set, and the mode of Auto-RAG."""
    settings = Settings.model_validate(sections)
    async with open_scripted(
        settings, engines={"default": engine}, retriever=ScriptedRetriever()
    ) as runtime:
        sets = {role.name: role.templates.folder.name for role in runtime.roles}
        return sets | {"autorag": autorag_mode(settings.autorag, runtime.roles.reader)}


@pytest.mark.parametrize(
    ("capabilities", "sections", "expected"),
    [
        (
            OURS,
            {},
            {"revelator": "compact", "reader": "compact", "judge": "compact", "autorag": "tuned"},
        ),
        (
            Capabilities(),
            {},
            {"revelator": "full", "reader": "full", "judge": "full", "autorag": "few_shot"},
        ),
        (
            Capabilities(),
            {"roles": {"revelator": {"templates": "compact"}}, "autorag": {"mode": "tuned"}},
            {"revelator": "compact", "reader": "full", "judge": "compact", "autorag": "tuned"},
        ),
        (
            OURS,
            {"roles": {"reader": {"templates": "full"}}, "autorag": {"mode": "few_shot"}},
            {"revelator": "compact", "reader": "full", "judge": "compact", "autorag": "few_shot"},
        ),
    ],
    ids=["ours", "any other", "an adapter of a user", "ours, told otherwise"],
)
async def test_what_is_not_set_follows_the_model(
    capabilities: Capabilities, sections: Mapping[str, Any], expected: Mapping[str, str]
) -> None:
    engine = ScriptedGenerator(capabilities=capabilities)

    assert await resolved(engine, **sections) == expected


def test_the_shipped_model_says_what_it_was_trained_on() -> None:
    capabilities = open_generator("default", EngineSettings()).capabilities

    assert (SHIPPED / (capabilities.templates or "")).is_dir()
    assert capabilities.templates == "compact"
    assert capabilities.autorag == "tuned"


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(kind="local", model="somebody/instruct-model"),
        EngineSettings(kind="openai", urls=["http://127.0.0.1:9/v1"]),
        EngineSettings(kind="vllm", urls=["http://127.0.0.1:9/v1"]),
    ],
    ids=["local", "openai", "vllm"],
)
async def test_any_other_model_is_taken_for_an_untuned_one(settings: EngineSettings) -> None:
    engine = open_generator("default", settings)

    try:
        assert set((await resolved(engine)).values()) == {"full", "few_shot"}
    finally:
        await engine.aclose()


def test_a_folder_says_what_its_model_was_trained_on(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    for folder, templates in ((tmp_path, None), (TINY, str(TINY_TEMPLATES))):
        engine = open_generator("default", EngineSettings(kind="local", model=str(folder)))
        assert engine.capabilities.autorag == "tuned"
        assert engine.capabilities.passages == 1
        assert templates is None or engine.capabilities.templates == templates


def notes_of(folder: Path, config: object) -> TrainingNotes:
    (folder / "config.json").write_text(
        config if isinstance(config, str) else json.dumps(config), encoding="utf-8"
    )
    return read_training_notes(folder)


@pytest.mark.parametrize("config", ["", "{", "[1]", "null", {"model_type": "llama"}])
def test_a_folder_without_notes(config: object, tmp_path: Path) -> None:
    assert read_training_notes(tmp_path / "absent") == UNKNOWN
    assert notes_of(tmp_path, config) == UNKNOWN


def test_notes_may_say_a_part_and_more_than_we_know(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, {"revelator": {"templates": "compact", "later": 1}})

    assert notes == TrainingNotes(templates="compact")


@pytest.mark.parametrize(
    "wrong", ["tiny", ["tiny"], {"autorag": "maybe"}, {"templates": 3}, {"passages": 0}]
)
def test_notes_in_another_form_are_an_error_that_names_the_file(
    wrong: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json: revelator"):
        notes_of(tmp_path, {"revelator": wrong})


def test_notes_that_name_no_template_set_are_an_error(tmp_path: Path) -> None:
    engine = ScriptedGenerator(capabilities=Capabilities(templates="nowhere"))

    with pytest.raises(ConfigurationError, match=r"roles\.revelator\.templates.*'nowhere'"):
        open_roles(Settings(), {"default": engine})


def test_what_was_resolved_can_be_read() -> None:
    engine = ScriptedGenerator(capabilities=OURS)
    settings = Settings.model_validate({"roles": {"judge": {"model": "judge-1"}}})

    lines = {
        line.name: line.detail
        for line in describe_roles(settings, open_roles(settings, {"default": engine}))
    }

    assert lines["role reader"] == (
        "engine scripted (embedded), the shipped model, compact prompts"
    )
    assert lines["role judge"] == "engine scripted (embedded), judge-1, compact prompts"
    assert lines["loop autorag"] == "mode tuned"


@pytest.mark.parametrize(("status", "runs"), [(404, False), (400, True)])
async def test_loops_that_continue_raw_text_find_out_before_they_run(
    status: int, runs: bool
) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        return None if "messages" in body else "no prompt"

    asked = AnswerRequest.model_validate({"question": "Who?", "route": "single", "loop": "ircot"})
    async with StubServer(refuses=refuses, refusal=status) as server:
        settings = Settings(engines={"default": EngineSettings(kind="openai", urls=[server.url])})
        async with open_scripted(settings, retriever=ScriptedRetriever({"": []})) as runtime:
            if runs:
                await runtime.prepare(asked, anyone)
                return
            with pytest.raises(LoopUnavailable, match="has no /v1/completions"):
                await runtime.prepare(asked, anyone)
            await runtime.prepare(asked.model_copy(update={"loop": "anrag"}), anyone)
            assert len(server.bodies) == 1  # asked once, with nothing to generate


@pytest.mark.parametrize("encoder", ["shipped", "none"])
async def test_weights_are_opened_at_the_start_only_where_every_question_needs_them(
    encoder: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(COMPILED, tmp_path / "model")
    settings = Settings.model_validate(
        {
            "engines": {"default": {"kind": "embedded", "model": str(folder)}},
            "roles": {"reader": {"encoder": encoder}},
        }
    )
    waits = "default: opened when a question first needs it" if encoder == "shipped" else None
    passages = {"": [Passage("1", "Norma", "Vincenzo Bellini composed the opera Norma.")]}
    async with open_scripted(settings, retriever=ScriptedRetriever(passages)) as runtime:

        async def ask(**fields: Any) -> None:
            request = await runtime.prepare(
                AnswerRequest(question="Who composed Norma?", **fields), anyone
            )
            await collect(runtime.ask(request))

        async def detail() -> str:
            checks = {check.name: check for check in await warm(runtime)}
            assert checks["engine default"].ok
            return checks["engine default"].detail

        assert await detail() == (waits or "default")
        await ask(route="single")
        assert await detail() == (waits or "default")
        await ask(route="direct")
        assert await detail() == ("default: open" if waits else "default")
    (folder / "model.onnx").write_bytes(b"")
    async with open_scripted(settings, retriever=ScriptedRetriever(passages)) as runtime:
        (check,) = [check for check in await check_all(runtime) if check.name == "engine default"]
        assert not check.ok
        assert "is damaged" in check.detail


async def test_an_encoder_that_verifies_must_be_named() -> None:
    settings = Settings.model_validate(
        {"answers": {"verify_with": "reader"}, "roles": {"reader": {"encoder": "none"}}}
    )
    with pytest.raises(ConfigurationError, match=r"answers\.verify_with .* roles\.reader\.encoder"):
        async with open_scripted(settings, engines={"default": ScriptedGenerator()}):
            pass
