"""Record what the official code of IRCoT and Self-Ask and FlashRAG's ITER-RETGEN do on our scripts.

    python -m tests.conformance.chains_official IRCOT FLASHRAG SELF_ASK

IRCOT and FLASHRAG are checkouts of StonyBrookNLP/ircot and RUC-NLPIR/FlashRAG, outside the project;
SELF_ASK is a module or notebook with the functions of ofirpress/self-ask (`promptf` and those that
it calls). Needs rapidfuzz. The algorithms run unchanged; what stands around them is replaced: the
model by a script, Elasticsearch by BM25 in memory, spaCy's sentences by ours, prompts by none.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.text.tagging import open_splitter
from tests.conformance.chains_cases import (
    ASKED,
    RECORD,
    SENTENCES,
    Script,
    first,
    ircot_scripts,
    iter_retgen_scripts,
    retriever,
    self_ask_scripts,
)
from tests.conformance.dragin_official import stand_in

CORPUS = "sample"


class Said:
    """The model: says the next line of a script, and remembers the prompts."""

    def __init__(self, outputs: tuple[str, ...] = ()) -> None:
        self.outputs = list(outputs)
        self.prompts: list[str] = []

    def say(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.outputs.pop(0)


MODEL = Said()
QUERIES: list[str] = []


class Generator:
    """In the place of the official client of a model's server."""

    def __init__(self, **_: Any) -> None:
        pass

    def generate_text_sequence(self, prompt: str) -> list[tuple[str, float]]:
        return [(MODEL.say(prompt), 0.0)]


class Sentences:
    """What the official code reads of a spaCy document."""

    def __init__(self, text: str) -> None:
        self.sents = [
            types.SimpleNamespace(text=each) for each in open_splitter("own").sentences(text)
        ]


class Reply:
    ok = True

    def __init__(self, params: dict[str, Any]) -> None:
        query, count = params["query_text"], params["max_hits_count"]
        QUERIES.append(query)
        self._hits = retriever().best(query, count)

    def json(self) -> dict[str, Any]:
        rows = [
            {"title": p.title, "paragraph_text": p.text, "corpus_name": CORPUS, "id": p.passage_id}
            for p in self._hits
        ]
        return {"retrieval": rows}


def import_ircot(checkout: Path) -> Any:
    """The checkout's `ircot` module among stand-ins."""
    stand_in("spacy", load=lambda _: Sentences)
    stand_in("openai")
    stand_in("ftfy", fix_text=str)
    memory = {"__init__": lambda *_: None, "memoize": lambda _: lambda function: function}
    stand_in("diskcache", Cache=type("Cache", (), memory))
    sys.path.insert(0, str(checkout))
    importlib.import_module("commaqa.models")
    stand_in("commaqa.models.gpt3generator", GPT3Generator=Generator)
    stand_in("commaqa.models.llm_client_generator", LLMClientGenerator=Generator)
    official = importlib.import_module("commaqa.inference.ircot")
    official.safe_post_request = lambda _, params: Reply(params)
    return official


def open_ircot(official: Any) -> Any:
    """The models and their order as in base_configs/ircot_codex_hotpotqa.jsonnet, N as in the
    paper."""
    search = importlib.import_module("commaqa.inference.model_search")
    instances = importlib.import_module("commaqa.inference.data_instances")
    end, answer = "[EOQ]", ".* answer is:? (.*)\\.?"
    retrieve = official.RetrieveAndResetParagraphsParticipant(
        retrieval_type="bm25", retriever_host="", retriever_port=0, retrieval_count=6,
        global_max_num_paras=15, query_source="question_or_last_generated_sentence",
        source_corpus_name=CORPUS, document_type="title_paragraph_text", cumulate_titles=True,
        next_model="generate", end_state=end,
    )  # fmt: skip
    generate = official.StepByStepCOTGenParticipant(
        generation_type="sentences", add_context=True, terminal_return_type=None,
        disable_exit=True, gen_model="llm_api", max_num_sentences=SENTENCES,
        next_model="exit", end_state=end,
    )  # fmt: skip
    leave = official.StepByStepExitControllerParticipant(
        answer_extractor_regex=answer, terminal_return_type="pids", global_max_num_paras=15,
        max_num_sentences=SENTENCES, next_model="retrieve", end_state=end,
    )  # fmt: skip
    models = {
        "start_state": "retrieve", "end_state": end, "retrieve": retrieve.query,
        "generate": generate.query, "exit": leave.query,
    }  # fmt: skip
    controller = search.ModelController(models, data_class=instances.StructuredDataInstance)
    return search.BestFirstDecomposer(controller)


def record_ircot(decomposer: Any, script: Script) -> dict[str, Any]:
    begin(script)
    example = {
        "qid": "q", "question": script.question, "titles": [], "paras": [], "metadata": {},
    }  # fmt: skip
    state, _ = decomposer.find_answer_decomp(example)
    ids = {(p.title, p.text): p.passage_id for p in reversed(retriever().passages)}
    passages = [ids[pair] for pair in zip(state.data["titles"], state.data["paras"], strict=True)]
    return {
        "queries": [query.strip() for query in QUERIES],
        "sentences": state.data["generated_sentences"],
        "shown": first([shown_in(prompt) for prompt in MODEL.prompts], passages),
        "written": [len(prompt.rpartition("\nA:")[2].strip()) for prompt in MODEL.prompts],
        "passages": passages,
    }


def shown_in(prompt: str) -> list[str]:
    """The passages of an official prompt, in its order."""
    places = {}
    for passage in retriever().passages:
        begin = " ".join(passage.text.strip().split(" ")[:50])  # it is cut at 350 words
        place = prompt.find(f"Wikipedia Title: {passage.title}\n{begin}")
        if place >= 0:
            places[passage.passage_id] = place
    return sorted(places, key=places.__getitem__)


def open_iter_retgen(checkout: Path) -> Any:
    """The class itself, without the package's other pipelines and what they import."""
    base = type("BasicPipeline", (), {
        "__init__": lambda self, config, template: setattr(self, "prompt_template", template),
        "evaluate": lambda self, dataset, **_: dataset,
    })  # fmt: skip
    source = (checkout / "flashrag/pipeline/active_pipeline.py").read_text(encoding="utf-8")
    kinds = defined(source, ast.ClassDef, {"IterativePipeline"}, {"BasicPipeline": base})
    return kinds["IterativePipeline"]


def record_iter_retgen(pipeline: Any, script: Script) -> dict[str, Any]:
    begin(script)
    outputs: dict[str, Any] = {}
    dataset = types.SimpleNamespace(question=[script.question], update_output=outputs.__setitem__)

    def search(queries: list[str]) -> list[list[Any]]:
        QUERIES.extend(queries)
        return [retriever().best(query, 5) for query in queries]

    def show(question: str, retrieval_result: list[Any]) -> str:
        return " ".join(passage.passage_id for passage in retrieval_result)

    model = types.SimpleNamespace(generate=lambda prompts: [MODEL.say(each) for each in prompts])
    pipeline(
        {}, types.SimpleNamespace(get_string=show), generator=model,
        retriever=types.SimpleNamespace(batch_search=search),
    ).run(dataset)  # fmt: skip
    found = [outputs[f"retrieval_result_iter_{n}"][0] for n in range(len(QUERIES))]
    return {
        "queries": list(QUERIES),
        "passages": [[passage.passage_id for passage in hits] for hits in found],
        "shown": [len(prompt.split()) for prompt in MODEL.prompts],
        "last": outputs["pred"][0],
    }


def open_self_ask(path: Path) -> dict[str, Any]:
    """The functions of the demonstration, with the script for the model and for the search."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        text = "\n".join(source for cell in cells if "def " in (source := "".join(cell["source"])))
    wanted = {"promptf", "get_last_line", "extract_question", "extract_answer"}
    marks: dict[str, Callable[[str], str]] = {"greenify": str, "yellowfy": str}
    return defined(text, ast.FunctionDef, wanted, dict(marks))


def record_self_ask(functions: dict[str, Any], script: Script) -> dict[str, Any]:
    begin(script)
    answers = list(script.answers)

    def get_answer(question: str) -> str:
        QUERIES.append(question)
        return answers.pop(0)

    functions.update(call_gpt=lambda prompt, stop: MODEL.say(prompt), get_answer=get_answer)
    with contextlib.redirect_stdout(io.StringIO()):
        text = functions["promptf"](script.question, ["Question: ", ASKED])
    return {
        "asked": list(QUERIES),
        "scratchpads": [prompt.rpartition(ASKED)[2] for prompt in MODEL.prompts],
        "answer": functions["extract_answer"](text.rstrip("\n")),
    }


def begin(script: Script) -> None:
    MODEL.outputs, MODEL.prompts = list(script.outputs), []
    QUERIES.clear()


def defined(source: str, kind: type, names: set[str], known: dict[str, Any]) -> dict[str, Any]:
    """Run only these definitions of a source."""
    tree = ast.parse(source)
    tree.body = [n for n in tree.body if isinstance(n, kind) and getattr(n, "name", "") in names]
    exec(compile(tree, "official", "exec"), known)
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("ircot", "flashrag", "self_ask"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    decomposer = open_ircot(import_ircot(given.ircot))
    pipeline = open_iter_retgen(given.flashrag)
    functions = open_self_ask(given.self_ask)
    record = {
        "ircot": [
            {**vars(script), **record_ircot(decomposer, script)} for script in ircot_scripts()
        ],
        "iter_retgen": [
            {**vars(script), **record_iter_retgen(pipeline, script)}
            for script in iter_retgen_scripts()
        ],
        "self_ask": [
            {**vars(script), **record_self_ask(functions, script)} for script in self_ask_scripts()
        ],
    }
    rows = {
        name: [json.dumps(row, ensure_ascii=False) for row in made] for name, made in record.items()
    }
    blocks = [f'"{name}": [\n' + ",\n".join(lines) + "\n]" for name, lines in rows.items()]
    RECORD.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
