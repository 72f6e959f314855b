"""Names of settings that do not exist: those of earlier versions, and misspelt ones."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, get_args

from pydantic import BaseModel

# By dotted name; `*` stands for the name of an engine or a store. The changelog has the same table.
REMOVED: Final[dict[str, str]] = {
    "engines.*.pool": "Pools need no settings but engines.*.resolve (before: pool.resolve).",
    "hanrag.on_no_evidence": "Use answers.no_evidence, its new name.",
    "hanrag.relevance": 'Write hanrag.skip = ["relevance"] to switch it off.',
    "hanrag.ending": 'Write hanrag.skip = ["ending"] to switch it off.',
    "hanrag.refine": 'Write hanrag.skip = ["refine"] to switch it off.',
    "hanrag.max_parts": "A compound question has at most 8 parts.",
    "autorag.parametric": "Write autorag.max_parametric = 0 to switch it off.",
    "autorag.max_retrievals": "Use max_steps of a request.",
    "autorag.passages": "Use top_k of a request.",
    "autorag.preset": "Use max_steps and top_k of a request (the paper's values: METHODS.md §2.2).",
    "autorag.context_tokens": "The engine's context is the limit, or 8,192 tokens.",
    "dragin.preset": "Set dragin.threshold, max_tokens and query_words (METHODS.md §3.2).",
    "dragin.preset_source": "Set dragin.threshold; METHODS.md §3.2 has the published values.",
    "dragin.max_retrievals": "Use max_steps of a request.",
    "dragin.weight": "A token is weighed by its entropy, as in the paper.",
    "dragin.query_formulation": "The query has the words attended to most, as in the paper.",
    "dragin.truncate": "A draft is cut at the start of its sentence, as in the official code.",
    "dragin.docs_persist": "Passages stay for one sentence, as in the official code.",
    "dragin.cut_drafts": "dragin.profile determines it; remove this setting.",
    "dragin.rind": "What triggers a retrieval follows dragin.profile.",
    "dragin.qfs": "The query is formed from the whole sentence, as in the official code.",
    "dragin.sentences": 'spaCy finds the sentences if dragin.tagger is "spacy".',
    "efficientrag.labeler": "Use efficientrag.location, a folder with `labeler` and `filter`.",
    "efficientrag.filter": "Use efficientrag.location, a folder with `labeler` and `filter`.",
    "efficientrag.labels": "efficientrag.profile determines it; remove this setting.",
    "efficientrag.filter_base": "The filter reads the query of the current hop, as in the paper.",
    "efficientrag.deduplicate": "efficientrag.profile determines it; remove this setting.",
    "efficientrag.reader_passages": "The reader gets all passages kept, or as many as its model "
    "reads well.",
    "efficientrag.threads": "The labeler and the filter use half of the cores.",
    "router.direct_confidence": "The classifier's route `direct` needs a confidence of 0.98.",
    "router.threads": "The classifier uses one thread.",
    "escalation.no_evidence": "Escalation without evidence is part of escalation.when.",
    "engines.*.session_header": "The header X-Session-Id carries the question's id.",
    "engines.*.chat_template_kwargs": "Write it inside engines.*.extra_body.",
    "engines.*.ca_file": "Use engines.*.ca_files, a list.",
    "retrieval.elasticsearch_ca_file": "Use retrieval.ca_files, a list.",
    "retrieval.qdrant_ca_file": "Use retrieval.ca_files, a list.",
    "retrieval.embedding.ca_file": "Use retrieval.ca_files, a list.",
    "retrieval.reranker.ca_file": "Use retrieval.ca_files, a list.",
    "retrieval.elasticsearch_replicas": "Use the component template revelator@custom.",
    "retrieval.vectors": "Use retrieval.quantization; the other options are Qdrant's defaults.",
    "retrieval.rrf_k": "Reciprocal rank fusion uses k = 60.",
    "retrieval.normalisation": "Scores are scaled to mean 0 and standard deviation 1.",
    "retrieval.write_timeout_s": "All requests other than searches have a time limit of 30 s.",
    "retrieval.retries": "A search is retried twice within its time limit.",
    "retrieval.backends": "Use retrieval.timeout_s, for all backends.",
    "retrieval.breaker": "The circuit breaker opens for 1 s, after 5 failures or 3 s without a "
    "response.",
    "retrieval.cache": "1,000 query embeddings are cached; results of searches are not.",
    "retrieval.embedding.timeout_s": "A request to the embedding server gets 30 s.",
    "retrieval.embedding.batch": "A request to the embedding server has 32 texts.",
    "retrieval.embedding.window_s": "Queries wait 2 ms for others while the model is busy.",
    "retrieval.embedding.encoding": "Vectors are requested as numbers.",
    "retrieval.embedding.threads": "A model in this process uses half of the cores, at most 4.",
    "retrieval.embedding.normalise": "retrieval.embedding.distance determines it; remove this "
    "setting.",
    "retrieval.reranker.timeout_s": "Use retrieval.timeout_s.",
    "server.max_waiting": "Three quarters of server.max_running questions may wait.",
    "server.max_wait_s": "A waiting question gets 503 after 30 s.",
    "server.max_body_bytes": "JSON bodies may have 1 MB; send more documents as NDJSON.",
}


def advice_on(settings: type[BaseModel], place: Sequence[int | str]) -> str:
    """Return what to do about a setting at `place` that `settings` does not have."""
    name = ".".join(map(str, place))
    for pattern, advice in REMOVED.items():
        if fnmatchcase(name, pattern):
            return f"this setting was removed. {advice}"
    names = _names_in(settings, place[:-1])
    close = get_close_matches(str(place[-1]), names, 1)
    meant = f"Did you mean {close[0]}?" if close else f"The settings here are {', '.join(names)}."
    return f"there is no such setting. {meant}"


def _names_in(settings: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Return the settings of the section at `place`."""
    section: Any = settings
    for part in place:
        if issubclass(section, BaseModel) and part in section.model_fields:
            kinds = _models(section.model_fields[str(part)].annotation)
            section = kinds[0] if kinds else section
    return sorted(section.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The section classes in an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
