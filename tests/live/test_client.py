"""The Python client, and a live server with connections that break."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.answer.events import Done, Start, Token
from service.api import recordings, wire
from service.api.feedback import rows_for_evaluation
from service.client import AnswerFailed, Client
from service.core.errors import (
    ConfigurationError,
    EngineFailure,
    InvalidRequest,
    NotFound,
)
from tests.faults.proxy import proxied
from tests.server_nodes import free_port
from tests.support.live import config, eventually, live
from tests.support.scripted import ScriptedGenerator, ScriptStep


async def test_an_answer_and_its_events() -> None:
    async with live() as server, Client(server.url) as client:
        answer = await client.answer("Who composed Norma?", route="single")
        assert answer.answer == "Vincenzo Bellini"
        assert answer.citations[0].text
        events = [event async for event in client.stream("Who composed Norma?")]
        assert isinstance(events[0], Start)
        assert isinstance(events[-1], Done)
        assert [event.seq for event in events] == list(range(len(events)))


async def test_refusals_are_errors_of_their_kind() -> None:
    async with live(settings=config(server={"keys": ["secret"]})) as server:
        async with Client(server.url) as client:
            with pytest.raises(ConfigurationError, match="key"):
                await client.answer("Who?")
            with pytest.raises(ConfigurationError, match="key"):
                await client.collections()
        async with Client(server.url, key="secret") as client:
            with pytest.raises(InvalidRequest, match="top_k"):
                await client.answer("Who?", top_k=0)
            with pytest.raises(NotFound):
                await client.collection("gone")


async def test_a_question_that_fails_says_why() -> None:
    script = [ScriptStep(reply=EngineFailure("out of order"), times=None)]
    async with live(script) as server, Client(server.url) as client:
        with pytest.raises(AnswerFailed, match="out of order") as failed:
            await client.answer("Who?", route="direct")
        assert (failed.value.status, failed.value.slug) == (503, "engine-unavailable")


@pytest.mark.parametrize("cuts", [[20], [700], [900, 500, 400, 300]])
async def test_a_stream_that_breaks_goes_on_and_the_question_is_asked_once(
    cuts: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    words = [f"w{n} " for n in range(40)]
    engine = ScriptedGenerator([ScriptStep(reply=words, delay=0.002)])
    async with live(engine) as server, proxied(server.url) as proxy:
        proxy.cuts = list(cuts)
        async with Client(proxy.url) as client:
            events = [event async for event in client.stream("Who?", route="direct")]
        assert not proxy.cuts
        assert proxy.requests > len(cuts)
        assert [event.seq for event in events] == list(range(len(events)))
        told = [event.text for event in events if isinstance(event, Token)]
        assert "".join(told).split() == "".join(words).split()
        assert len(engine.requests) == 1
    assert "request failed" not in capfd.readouterr().err


async def test_a_stream_that_only_breaks_is_given_up() -> None:
    async with live() as server, proxied(server.url) as proxy:
        proxy.cuts = [30] * 10
        async with Client(proxy.url, retries=1) as client:
            with pytest.raises(EngineFailure, match="closed the connection"):
                await client.answer("Who?")
        assert proxy.requests == 2
    async with Client(f"http://127.0.0.1:{free_port()}", retries=0) as client:
        with pytest.raises(EngineFailure, match="revelator serve"):
            await client.answer("Who?")
        with pytest.raises(EngineFailure, match="revelator serve"):
            await client.collections()


async def test_a_reader_that_leaves_ends_a_question_that_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recordings, "GRACE_S", 600.0)  # as a question that may be resumed would
    engine = ScriptedGenerator([ScriptStep(reply="slow word " * 2_000, delay=0.05)])
    async with live(engine) as server, Client(server.url) as client:
        stream = client.events({"question": "Who?", "route": "direct"}, resumed=False)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await eventually(lambda: engine.running == 0)


async def test_collections_and_documents(tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with live(settings=settings, own_stores=True) as server, Client(server.url) as client:
        made = await client.put_collection("mine", description="Operas")
        assert (made.name, made.description, made.documents) == ("mine", "Operas", 0)
        documents = [
            {"id": "n/1", "title": "Norma", "text": "Vincenzo Bellini composed Norma.", "page": 4},
            {"id": "m/../n/1", "text": "Norma has two acts."},
            {"id": "bad"},
        ]
        report = await client.add_documents("mine", documents)
        assert (report.indexed, [each.id for each in report.failed]) == (2, ["bad"])
        other = await client.document("mine", "m/../n/1")
        assert (other.id, other.passages[0].text) == ("m/../n/1", "Norma has two acts.")
        await client.delete_document("mine", "m/../n/1")
        stored = await client.document("mine", "n/1")
        assert (stored.title, stored.metadata) == ("Norma", {"page": 4})
        answer = await client.answer("Who composed Norma?", collection="mine", route="single")
        assert answer.citations[0].page == 4
        assert [each.name for each in (await client.collections()).collections].count("mine") == 1
        await client.delete_document("mine", "n/1")
        assert (await client.collection("mine")).documents == 0
        await client.delete_collection("mine")
        with pytest.raises(NotFound):
            await client.collection("mine")


async def test_files_and_feedback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "TOLD_S", 0.001)
    settings = config(tmp_path / "data", ingest={"keep_files": True})
    texts = {"norma.md": "Bellini composed Norma.", "empty.txt": "", "large.txt": "word " * 9_000}
    files = [tmp_path / name for name in texts]
    for path in files:
        path.write_text(texts[path.name])
    async with live(settings=settings, own_stores=True) as server, Client(server.url) as client:
        await client.put_collection("mine")
        told: list[tuple[str, int, int | None]] = []
        found = await client.add_files("mine", files, follow=lambda *each: told.append(each))
        assert [(each.file, each.indexed) for each in found] == [
            ("norma.md", 1), ("empty.txt", 0), ("large.txt", 1),
        ]  # fmt: skip
        assert found[1].problems == ["the file is empty"]
        assert {(stage, total) for stage, _, total in told} == {("files", 3)}
        (again,) = await client.add_files("mine", files[:1], access=["board"])
        assert again.indexed == 1  # who may see it has changed
        assert (await client.document("mine", "norma.md")).metadata["access"] == ["board"]
        assert await client.file("mine", "norma.md") == files[0].read_bytes()
        with pytest.raises(NotFound):
            await client.file("mine", "gone.md")
        answer = await client.answer("Who composed Norma?", collection="mine", route="single")
        await client.feedback(answer.id, "down", reason="no", expected="Vincenzo Bellini")
        with pytest.raises(NotFound, match="no answer 'other'"):
            await client.feedback("other", "up")
    (row,) = rows_for_evaluation(settings.data_dir)
    assert row["answers"] == ["Vincenzo Bellini"]
