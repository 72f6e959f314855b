"""Record what DRAGIN's baselines FL-RAG and FS-RAG do, for `test_windows.py`.

    git clone https://github.com/oneal2000/DRAGIN CHECKOUT
    python -m tests.conformance.windows_official CHECKOUT

Runs the checkout's `FixLengthRAG.inference` itself, unchanged. What stands around it is replaced:
the language model by the made-up one of FLARE's record (`flare_official.py`), spaCy by our
sentences, Elasticsearch by a BM25 in memory.
"""

from __future__ import annotations

import argparse
import json
import types
from pathlib import Path
from typing import Any

from service.text.tagging import open_splitter
from tests.conformance import flare_parity as parity
from tests.conformance.dragin_official import import_official
from tests.conformance.dragin_parity import load_questions, shown_text
from tests.conformance.flare_official import RETRIEVER, MadeUpModel

RECORD = Path(__file__).parent / "windows_official.json"
LIMIT, WINDOW, EACH = 48, 8, 15


class Words:
    """In the place of the tokenizer: a token a word, and the one before the text."""

    def encode(self, text: str) -> list[str]:
        return ["<s>", *text.split()]


def record(official: Any, question: str, method: str) -> dict[str, Any]:
    model = MadeUpModel(f"{method} {question}")
    turns: list[dict[str, Any]] = []

    def generate(prompt: str, most: int) -> tuple[str, None, None]:
        output = model.write(parity.State.of(prompt, question)).cut(most)
        return "".join(text for text, _ in output.tokens), None, None

    def retrieve(query: str, topk: int) -> list[str]:
        turns.append({"query": query})
        return [shown_text(passage) for passage in RETRIEVER.best(query, topk)]

    rag = official.FixLengthRAG.__new__(official.FixLengthRAG)
    vars(rag).update(
        query_formulation="direct", method=method, fix_length=WINDOW, use_counter=False,
        generate_max_length=LIMIT, retrieve_topk=parity.PASSAGES_SHOWN, retrieve=retrieve,
        generator=types.SimpleNamespace(generate=generate, tokenizer=Words()),
    )  # fmt: skip
    text = rag.inference(question, [], f"Question: {question}\nAnswer:")
    outputs = [parity.row_of(state, output) for state, output in model.outputs.items()]
    return {"question": question, "turns": turns, "text": text, "outputs": outputs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    official = import_official(given.checkout)
    split = open_splitter("own").sentences
    official.nlp = lambda text: types.SimpleNamespace(sents=split(text))
    asked = load_questions()[:EACH]
    runs = {
        method: [record(official, question, method) for question in asked]
        for method in ("fix-length-retrieval", "fix-sentence-retrieval")
    }
    body = json.dumps(runs, ensure_ascii=False, separators=(",", ":"))
    given.out.write_text(body.replace('{"question"', '\n{"question"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
