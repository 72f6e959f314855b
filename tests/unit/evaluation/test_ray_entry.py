"""Workers of Ray that fail. Ray itself is replaced, since it starts some ten processes;
`tests/faults/test_ray_evaluate.py` has the real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from service.answer.events import BaseEvent, Done
from service.core.errors import EngineFailure
from service.core.settings import Settings
from tests.support.asking import prepared

ENTRY = "service.evaluation.ray_entry"


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with the names that it takes from Ray."""
    own = {
        "ray": {"exceptions": SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)},
        "ray.util": {},
        "ray.util.scheduling_strategies": {"NodeAffinitySchedulingStrategy": object},
        "service.retrieval.embedding.on_ray": {"connected": None},
    }
    for name, content in own.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop(ENTRY, None)
    yield import_module(ENTRY)
    del sys.modules[ENTRY]


class Worker:
    """Answers, or raises the `failure`."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.asked = 0
        self.failure = failure
        self.answer = SimpleNamespace(remote=self._answer)

    async def _answer(self, request: object, alter: object) -> list[BaseEvent]:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return [Done()]


def opened(entry: Any, workers: list[Worker]) -> Any:
    runtime = SimpleNamespace(engines={}, ask=None, prepare=prepared)
    return entry.OnRay(runtime, workers)


async def asked(on_ray: Any, times: int = 1) -> list[str]:
    """Ask one question after the other, and return what became of each."""
    found = []
    for _ in range(times):
        try:
            found += [event.event async for event in on_ray.ask(prepared())]
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (EngineFailure("not opened"), "EngineFailure: not opened"),
        (RayError("lost"), "EngineFailure: a worker of Ray failed: RayError: lost"),
    ],
)
async def test_a_worker_that_failed_is_not_asked_while_another_works(
    entry: Any, failure: Exception, told: str
) -> None:
    bad, good = Worker(failure), Worker()
    on_ray = opened(entry, [bad, good])
    assert await asked(on_ray, 4) == [told, "done", "done", "done"]
    assert (bad.asked, good.asked) == (1, 3)


async def test_workers_that_have_all_failed_are_tried_again(entry: Any) -> None:
    workers = [Worker(RayError("lost")), Worker(RayError("lost"))]
    on_ray = opened(entry, workers)
    await asked(on_ray, 2)
    workers[1].failure = None
    assert (await asked(on_ray, 4))[1:] == ["done"] * 3


async def test_an_error_of_a_question_is_not_one_of_its_worker(entry: Any) -> None:
    bad, good = Worker(RayTaskError("a bug")), Worker()
    assert await asked(opened(entry, [bad, good]), 2) == ["RayTaskError: a bug"] * 2
    assert bad.asked == 2


async def test_a_runtime_that_cannot_be_opened_is_a_failure_of_the_engine(
    entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def full(data_dir: Path, folder: Path) -> None:
        folders.append(folder)
        raise OSError("no space left" * 1_000)

    monkeypatch.setattr(entry, "copy_data", full)
    worker = entry.Answering(Settings())
    for _ in range(2):
        with pytest.raises(EngineFailure, match="could not open its runtime: OSError: no spa") as e:
            await worker.answer(prepared(), None)
        assert len(e.value.detail) < 1_000
    assert len(folders) == 2
    assert not any(folder.parent.exists() for folder in folders)
