"""A search as Elasticsearch is asked it: the two query shapes (METHODS.md §6 #30, §1.6, §3.3).

Only `match` and `multi_match` see the user's text, and of that only its words: nothing in it can
become syntax. Statistics are those of all shards (`dfs_query_then_fetch`), so that a score does
not depend on how an index is cut; with one shard Elasticsearch leaves that step out.
"""

from __future__ import annotations

from typing import Any

from service.retrieval.base import TIE_BREAKER, StoreQuery
from service.retrieval.search.filters import filter_tokens
from service.retrieval.stores.query_words import query_words

SEARCH_TYPE = "dfs_query_then_fetch"
# What a search reads of a passage.
SOURCE = ["passage_id", "title", "text", "original", "metadata"]
MOST_HITS = 10_000  # Elasticsearch's own limit for one page
_FIELDS = ["title", "text"]


def search_body(query: StoreQuery) -> dict[str, Any] | None:
    """None where no word is left to ask for."""
    words = " ".join(query_words(query.text))
    if not words or query.top_k < 1:
        return None
    return {
        "size": min(query.top_k, MOST_HITS),
        "query": {"bool": _scored(query, words) | _unscored(query)},
        "_source": SOURCE,
        "track_total_hits": False,
    }


def _scored(query: StoreQuery, words: str) -> dict[str, Any]:
    if query.shape == "best_fields":
        best = {
            "query": words,
            "type": "best_fields",
            "fields": _FIELDS,
            "tie_breaker": TIE_BREAKER,
        }
        return {"must": [{"multi_match": best}]}
    either = [{"match": {field: {"query": words}}} for field in _FIELDS]
    return {"should": either, "minimum_should_match": 1}


def _unscored(query: StoreQuery) -> dict[str, Any]:
    clauses: dict[str, Any] = {}
    if query.filter:
        wanted = filter_tokens(query.filter)
        clauses["filter"] = [{"terms": {"filter": tokens}} for tokens in wanted]
    if query.exclude:
        clauses["must_not"] = [{"terms": {"passage_id": sorted(query.exclude)}}]
    return clauses
