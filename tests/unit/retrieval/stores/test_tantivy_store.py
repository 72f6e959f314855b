from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from typing import Any, get_args

import pytest

from service.core.errors import StoreBusy, StoreError
from service.retrieval.base import NOBODY, Analysis, SearchRequest
from service.retrieval.documents import Document, PassageRecord, passages_of
from service.retrieval.stores import tantivy_store
from service.retrieval.stores.tantivy_store import TantivyStore

TEXTS = {
    "a": "river bridge river stone",
    "b": "bridge tower",
    "c": "tower stone wall gate moat",
    "d": "river",
}

# A text, and another form of a word in it.
FORMS = {
    "arabic": ("المدن الكبيرة", "مدينة كبيرة"), "danish": ("husene ved åen", "hus"),
    "dutch": ("de bruggen", "brug"), "english": ("the bridges", "bridge"),
    "finnish": ("talot joella", "talo"), "french": ("les rivières", "rivière"),
    "german": ("die Häuser am Fluss", "Haus"), "greek": ("οι γέφυρες", "γέφυρα"),
    "hungarian": ("a házak", "ház"), "italian": ("le montagne", "montagna"),
    "norwegian": ("husene ved elva", "hus"), "portuguese": ("os livros", "livro"),
    "romanian": ("casele", "casa"), "russian": ("о реках и мостах", "мост"),
    "spanish": ("las montañas", "montaña"), "swedish": ("husen", "hus"),
    "turkish": ("evler", "ev"),
}  # fmt: skip


def records(texts: dict[str, str]) -> list[PassageRecord]:
    return [record for i, text in texts.items() for record in passages_of(Document(i, "", text))]


async def test_a_large_index_is_searched_in_a_thread_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TantivyStore(tmp_path, "english")
    await store.replace([], records(TEXTS))
    query = SearchRequest("river bridge tower", 10, "c")
    here = await store.search(query)
    monkeypatch.setattr(tantivy_store, "ON_LOOP", 0)
    assert await store.search(query) == here
    await store.close()


async def test_a_page_of_a_listing_needs_no_more_memory_than_some_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TantivyStore(tmp_path, "english")
    texts = {f"d{number:04}": "word " * 400 for number in range(2_000)}
    await store.replace([], records(texts))
    monkeypatch.setattr(tantivy_store, "SCAN", 100)
    tracemalloc.start()
    found = await store.heads("d0994", 10, NOBODY)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [record.document_id for record in found] == [
        f"d{number:04}" for number in range(995, 1_005)
    ]
    assert most < 1_500_000  # the texts of all documents have 4 MB
    await store.close()


@pytest.mark.parametrize("analysis", sorted(set(get_args(Analysis)) - {"simple"}))
async def test_other_forms_of_a_word_are_found(tmp_path: Path, analysis: Any) -> None:
    text, form = FORMS[analysis]
    for name, finds in ((analysis, 1), ("simple", 0)):
        store = TantivyStore(tmp_path / name, name)
        await store.replace([], records({"a": text}))
        assert len(await store.search(SearchRequest(form, 10, "c"))) == finds
        await store.close()


async def test_a_deletion_that_a_kill_left_half_written_is_made_again(tmp_path: Path) -> None:
    """The files of the commit are there, and what names them is not."""
    done, killed = tmp_path / "done", tmp_path / "killed"
    store = TantivyStore(done, "english")
    await store.replace([], records(TEXTS))
    await store.close()
    shutil.copytree(done, killed)
    store = TantivyStore(done, "english")
    await store.replace(["a"], [])
    await store.close()
    for path in done.iterdir():
        if path.suffix == ".del" or path.name == ".managed.json":
            shutil.copy(path, killed)
    store = TantivyStore(killed, "english")
    assert await store.count_passages() == len(TEXTS)
    await store.replace(["a"], [])
    assert await store.count_passages() == len(TEXTS) - 1
    await store.close()


async def test_a_commit_is_all_or_nothing(tmp_path: Path) -> None:
    store = TantivyStore(tmp_path, "english")
    await store.replace([], records(TEXTS))
    spoiled = [*records({"a": "new text"}), None]
    with pytest.raises(StoreError):
        await store.replace(["a", "b"], spoiled)  # type: ignore[arg-type]
    assert await store.counts(NOBODY) == (4, 4)
    await store.replace(["b"], records({"b": "other"}))
    assert [record.passage.text for record in await store.document("a")] == [TEXTS["a"]]
    assert [record.passage.text for record in await store.document("b")] == ["other"]
    await store.close()

    again = TantivyStore(tmp_path, "english")
    assert await again.count_passages() == 4
    [page] = [page async for page in again.records()]
    assert {record.document_id for record in page} == set(TEXTS)
    assert set(await again.hashes(["a", "no"])) == {"a"}
    await again.close()


async def test_another_writer_of_the_same_files_is_told_that_they_are_locked(
    tmp_path: Path,
) -> None:
    first, second = TantivyStore(tmp_path, "english"), TantivyStore(tmp_path, "english")
    await first.replace([], records(TEXTS))
    with pytest.raises(StoreBusy, match="another process writes to the BM25 index") as busy:
        await second.replace([], records({"e": "river"}))
    assert (busy.value.status, busy.value.retry_after) == (503, 5)
    with pytest.raises(StoreError) as failed:
        await first.replace([], [None])  # type: ignore[list-item]
    await second.replace([], records({"e": "river"}))  # also while the failure is kept
    assert failed.value.status == 500
    assert await second.count_passages() == 5
    await second.close()
