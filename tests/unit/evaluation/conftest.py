"""What an evaluation of the tests opens."""

from __future__ import annotations

from functools import partial

import pytest

from service.evaluation import command
from tests.support.asking import ScriptedRetriever
from tests.support.retrieval import open_scripted
from tests.unit.evaluation.evaluating import ROME, Engine, Opened


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Lets the command use this engine."""

    def use(engine: Engine) -> ScriptedRetriever:
        retriever = ScriptedRetriever({"": [ROME]})
        opening = partial(open_scripted, engines={"default": engine.generator}, retriever=retriever)
        monkeypatch.setattr(command, "open_runtime", opening)
        return retriever

    return use
