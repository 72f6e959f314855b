"""Record what the official DRAGIN does, for `test_dragin.py` to hold ours against.

    git clone https://github.com/oneal2000/DRAGIN CHECKOUT
    python -m tests.conformance.dragin_official CHECKOUT [--model DIR]

Runs the checkout's `AttnWeightRAG.inference` itself, unchanged, on our questions. What stands
around it is replaced: spaCy by our tagger and sentences, Elasticsearch by a BM25 in memory (the
checkout's own class still cuts the query), weights loaded in float32 with eager attention, greedy,
and a start token for a tokenizer that adds none. Wrapped methods only listen.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from service.prompts.templates import TemplateSet
from service.strategies.dragin import QUERY_TOKENS
from service.text.tagging import open_splitter, open_tagger
from tests.conformance import dragin_parity as parity
from tests.support.tiny import TINY

# The questions are dealt out to the runs in turn, and the first 48 to the runs with other queries.
RUNS = (
    parity.Parameters(hallucination_threshold=1.0, generate_max_length=48, retrieve_keep_top_k=25),
    parity.Parameters(hallucination_threshold=8.0, generate_max_length=48, retrieve_keep_top_k=10),
    parity.Parameters(hallucination_threshold=0.4, generate_max_length=48, retrieve_keep_top_k=25),
)
OTHER_QUERIES = tuple(
    replace(RUNS[2], query_formulation=name)
    for name in ("last_sentence", "forward_all", "current_wo_wrong", "last_n_tokens")
)
END = "</s>"
NEEDED = {"questions": 50, "two triggers": 15, "no trigger": 10, "all hits cleared": 5}
PASSAGES: dict[str, parity.WordRetriever] = {}


class Text:
    """What the official code reads of a spaCy document."""

    def __init__(self, text: str) -> None:
        tagger, splitter = open_tagger("stopwords"), open_splitter("own")
        self._tokens = [
            types.SimpleNamespace(text=word, pos_="NOUN") for word in tagger.content_words(text)
        ]
        self.sents = [types.SimpleNamespace(text=s) for s in splitter.sentences(text)]

    def __iter__(self) -> Any:
        return iter(self._tokens)


class MemorySearch:
    """In the place of BEIR's evaluation over Elasticsearch."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def retrieve(self, _: None, queries: dict[int, str], **__: Any) -> dict[int, Any]:
        found = {}
        for number, query in queries.items():
            hits = PASSAGES["sample"].best(query, 3)
            found[number] = {p.passage_id: (1.0, parity.shown_text(p)) for p in hits}
        return found


def stand_in(name: str, **members: Any) -> None:
    """Put a module with these members in the place of one that is not needed."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def import_official(checkout: Path, *, with_spacy: bool = False) -> Any:
    """The checkout's `generate` module among stand-ins."""
    if not with_spacy:
        stand_in("spacy", load=lambda _: Text)
    stand_in("faiss")
    for name in ("beir", "beir.datasets", "beir.retrieval", "beir.retrieval.search"):
        stand_in(name)
    stand_in("beir.datasets.data_loader", GenericDataLoader=object)
    stand_in("beir.retrieval.evaluation", EvaluateRetrieval=MemorySearch)
    blank = type("Blank", (), {"__init__": lambda *_, **__: None})
    stand_in("beir.retrieval.search.lexical", BM25Search=blank)
    stand_in("beir.retrieval.search.lexical.elastic_search", ElasticSearch=blank)
    sys.path.insert(0, str(checkout / "src"))
    official = importlib.import_module("generate")
    official.AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=load_network)
    official.AutoTokenizer = types.SimpleNamespace(from_pretrained=load_tokenizer)
    return official


def load_network(model: str, **_: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    network.generation_config.update(do_sample=False, temperature=None, top_p=None, top_k=None)
    return network.eval()


def load_tokenizer(model: str, **_: Any) -> Any:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    start, number = tokenizer.bos_token, tokenizer.bos_token_id
    if start and tokenizer("a").input_ids[0] != number:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, number)]
        )
    return tokenizer


def listen(owner: Any, name: str, heard: Callable[[tuple[Any, ...], Any], None]) -> None:
    """Tell `heard` of the arguments and the result of each call of a method."""
    method = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        result = method(*args, **options)
        heard(args, result)
        return result

    setattr(owner, name, call)


class Listener:
    """What the question under way has come to: its `turns`, and how often hits were `cleared`.

    `listed` names what ours does on purpose otherwise. What a tokenizer spells in bytes, a line
    break say, is `<0x0A>` inside the checkout's words: six letters once it reads them back, and
    part of its queries. An end token it leaves in the midst of the text; in a query that is cut,
    it is one of the 64 tokens. Where fewer than three passages are found, it shows empty lines.
    """

    def __init__(self, rag: Any) -> None:
        self.tokenizer = rag.generator.tokenizer
        listen(rag.generator, "generate_attn", self.drafted)
        listen(rag, "modifier", self.judged)
        listen(rag, "retrieve", self.asked)
        listen(rag.retriever.retriever, "retrieve", self.searched)
        listen(rag, "get_top_sentence", self.rewritten)

    def begin(self, question: str) -> None:
        self.turns: list[dict[str, str]] = []
        self.cleared = 0
        self.listed: set[str] = set()
        self.read(self.tokenizer.tokenize(question))

    def read(self, pieces: Sequence[str]) -> None:
        if any("<0x" in piece for piece in pieces):
            self.listed.add("characters in bytes")

    def drafted(self, args: tuple[Any, ...], result: Any) -> None:
        self.read(result[1])
        if END in args[0]:
            self.listed.add("an end token in the text")

    def judged(self, _: tuple[Any, ...], result: Any) -> None:
        hit, previous, _words, flags = result
        if hit:
            self.cleared += not any(flags)
            self.turns.append({"previous": previous})

    def asked(self, args: tuple[Any, ...], passages: Sequence[str]) -> None:
        if END in args[0] and len(self.tokenizer.tokenize(args[0])) > QUERY_TOKENS:
            self.listed.add("an end token in a query that is cut")
        if not all(passages):
            self.listed.add("fewer than three passages")

    def searched(self, args: tuple[Any, ...], _: Any) -> None:
        self.turns[-1]["query"] = args[1][0]

    def rewritten(self, _: tuple[Any, ...], sentence: str) -> None:
        self.turns[-1]["sentence"] = sentence


def open_rag(official: Any, model: Path, parameters: parity.Parameters) -> Any:
    """The checkout's DRAGIN with these weights."""
    return official.AttnWeightRAG(
        types.SimpleNamespace(
            model_name_or_path=str(model), method="dragin", retriever="BM25",
            retrieve_topk=parity.PASSAGES_SHOWN,
            check_real_words=True, use_counter=False, **asdict(parameters),
        )
    )  # fmt: skip


def record(
    rag: Any, questions: Sequence[str], templates: TemplateSet = parity.TEMPLATES
) -> list[dict[str, Any]]:
    heard = Listener(rag)
    rows = []
    for number, question in enumerate(questions):
        heard.begin(question)
        demonstrations, case = parity.prompt_parts(question, templates)
        text = rag.inference(question, [{"case": d} for d in demonstrations], case)
        rows.append(
            {
                "question": question,
                "turns": heard.turns,
                "text": text,
                "cleared": heard.cleared,
                "listed": sorted(heard.listed),
            }
        )
        print(f"\r{number + 1}", end="", flush=True, file=sys.stderr)
    return rows


def counts(runs: list[dict[str, Any]]) -> Counter[str]:
    """Of the questions that are compared."""
    rows = [row for run in runs for row in run["rows"] if not row["listed"]]
    return Counter(
        {
            "questions": len(rows),
            "two triggers": sum(len(row["turns"]) >= 2 for row in rows),
            "no trigger": sum(not row["turns"] for row in rows),
            "all hits cleared": sum(row["cleared"] > 0 for row in rows),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--out", type=Path, default=parity.RECORD)
    given = parser.parse_args()
    PASSAGES["sample"] = parity.WordRetriever(parity.load_passages())
    official = import_official(given.checkout)
    import torch

    questions = parity.load_questions()
    dealt = [(run, questions[n :: len(RUNS)]) for n, run in enumerate(RUNS)]
    dealt += [(run, questions[n:48:4]) for n, run in enumerate(OTHER_QUERIES)]
    with torch.inference_mode():
        runs = [
            {"parameters": asdict(run), "rows": record(open_rag(official, given.model, run), own)}
            for run, own in dealt
        ]
    found = counts(runs)
    print(f"\n{dict(found)}")
    if short := [name for name, least in NEEDED.items() if found[name] < least]:
        sys.exit(f"no evidence: too few with {', '.join(short)}; change RUNS or the questions")
    body = {"weights": parity.weights_hash(given.model), "runs": runs}
    given.out.write_text(json.dumps(body, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
