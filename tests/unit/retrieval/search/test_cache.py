from __future__ import annotations

from service.retrieval.search.hybrid import Cache
from tests.unit.retrieval.worlds import Observed


def test_the_least_recently_used_goes_first() -> None:
    observed = Observed()
    cache = Cache[str, int](2, observed)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert observed.asked == [True, True, False, True]
    cache.put("a", 4)
    cache.put("d", 5)
    assert [cache.get(key) for key in "acd"] == [4, None, 5]
