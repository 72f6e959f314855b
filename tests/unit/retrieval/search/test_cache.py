from __future__ import annotations

from service.retrieval.search.cache import Cache
from tests.unit.retrieval.worlds import Observed


def test_the_least_recently_used_goes_first() -> None:
    observed = Observed()
    cache = Cache[str, int]("search_results", 2, observed)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert observed.asked == [("search_results", hit) for hit in (True, True, False, True)]
    cache.put("a", 4)
    cache.put("d", 5)
    assert [cache.get(key) for key in "acd"] == [4, None, 5]


def test_a_cache_of_nothing_keeps_and_counts_nothing() -> None:
    observed = Observed()
    cache = Cache[str, int]("search_results", 0, observed)
    cache.put("a", 1)
    assert cache.get("a") is None
    assert observed.asked == []
