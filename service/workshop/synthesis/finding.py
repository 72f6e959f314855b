"""The searches of a run, in the product's own retrieval."""

from __future__ import annotations

from typing import Final

from service.core.domain import Passage
from service.core.errors import ConfigurationError
from service.retrieval.base import Retriever, SearchRequest
from service.workshop.facts.splits import Side, is_held_out
from service.workshop.synthesis.contract import Search
from service.workshop.synthesis.driver import Finder

SPARE: Final = 4  # times as many are fetched where what is held out is left out


async def finder_of(retriever: Retriever, collection: str | None, side: Side) -> Finder:
    """Searches of a collection, without what is held out where rows are to train.

    Raises NotFound for an unknown one.
    """
    if collection is None:
        return _nowhere
    name = await retriever.check_request(collection, {})
    training = side == "train"

    async def find(search: Search) -> tuple[Passage, ...]:
        top_k = search.top_k * SPARE if training else search.top_k
        request = SearchRequest(search.query, top_k, name, search.retriever)
        found = (scored.passage for scored in (await retriever.search(request)).passages)
        usable = [p for p in found if not (training and is_held_out(p.title))]
        return tuple(usable[: search.top_k])

    return find


async def _nowhere(search: Search) -> tuple[Passage, ...]:
    raise ConfigurationError("this pipeline searches: name a collection with --collection")
