from __future__ import annotations

import pytest

from service.retrieval.embedding import HashingEmbedder

pytestmark = pytest.mark.anyio


async def test_it_needs_nothing_and_matches_words() -> None:
    embedder = HashingEmbedder()
    assert embedder.problem() is None
    one, two, blank = await embedder.embed_passages(["the opera Norma", "Norma, an opera!", ""])
    assert one == pytest.approx(two)
    assert len(blank) == embedder.contract.dimension
    assert sum(x * x for x in blank) == pytest.approx(1)
