"""Names of methods, and the fields of the request that they may change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.core.errors import InvalidRequest
from service.evaluation.methods import Method, method_of, methods_of
from tests.unit.evaluation.test_command import (  # noqa: F401
    Engine,
    Opened,
    dataset,
    evaluated,
    opened,
)


def test_a_method_may_change_fields_of_the_request() -> None:
    assert method_of("one_retrieval@top_k=10") == Method(
        "one_retrieval@top_k=10", "complex", "one_retrieval", {"top_k": 10}
    )
    assert method_of("single/autorag@max_steps=2@retriever=bm25") == Method(
        "single/autorag@max_steps=2@retriever=bm25", "single", "autorag",
        {"max_steps": 2, "retriever": "bm25"},
    )  # fmt: skip
    named = methods_of(["one_retrieval, one_retrieval@top_k=10,one_retrieval@top_k=20"])
    assert [method.fields.get("top_k") for method in named] == [None, 10, 20]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one_retrieval@top_k=many", "'top_k=many' is not FIELD=VALUE; the fields are top_k, "),
        ("one_retrieval@top_k", "'top_k' is not FIELD=VALUE"),
        ("one_retrieval@", "'' is not FIELD=VALUE"),
        ("one_retrieval@question=Who?", "'question=Who?' is not FIELD=VALUE"),
        ("spiral@top_k=1", "method 'spiral' is unknown"),
        ("all@top_k=1", "each also with @FIELD=VALUE; and all, only without it"),
    ],
)
def test_a_field_that_cannot_be_changed(name: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        method_of(name)


@pytest.mark.anyio
async def test_each_variant_asks_with_its_own_fields(
    tmp_path: Path,
    opened: Opened,  # noqa: F811
) -> None:
    retriever = opened(Engine())
    methods = ["one_retrieval", "one_retrieval@top_k=7", "one_retrieval@retriever=bm25"]
    file = dataset(tmp_path / "d.jsonl", "Rome")
    code, _ = await evaluated(file, methods=methods, top_k=2, concurrency=1)
    assert code == 0
    assert [request.top_k for request in retriever.requests] == [2, 7, 2]
    assert [request.retriever for request in retriever.requests] == ["hybrid", "hybrid", "bm25"]
