"""A labeler and a filter that go by single words: in Python, and as ONNX checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.encoders.base import PassageLabel, Tag
from service.encoders.checkpoint import CARD_FILE, MODEL_FILE, CheckpointCard, Kind
from service.encoders.inputs import markable_words
from service.text.wordpiece import minilm_tokenizer
from service.text.words import word_spans


@dataclass
class WordLabeler:
    """Tags a passage by the words in `tags` that it has, TERMINATE without any, and marks those in
    `marks`. Words are matched without case."""

    tagged: Mapping[str, Tag]
    marks: Collection[str]
    tags: int = 3
    lacking: str | None = None
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def problem(self) -> str | None:
        return self.lacking

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        self.asked.append((query, list(passages)))
        return [self._label(passage) for passage in passages]

    def _label(self, passage: str) -> PassageLabel:
        found = [word.text for word in word_spans(passage)]
        known = [self.tagged[word.lower()] for word in found if word.lower() in self.tagged]
        tag = known[0] if known else Tag.TERMINATE
        return PassageLabel(tag, _kept(found, self.marks), 0.9)


@dataclass
class WordFilter:
    """Keeps the words in `marks`."""

    marks: Collection[str]
    lacking: str | None = None
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def problem(self) -> str | None:
        return self.lacking

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        self.asked.append((query, list(infos)))
        return _kept([w for text in (query, *infos) for w in markable_words(text)], self.marks)


def _kept(found: Sequence[str], marks: Collection[str]) -> str:
    return " ".join(word for word in found if word.lower() in marks)


def write_checkpoint(
    folder: Path,
    kind: Kind,
    marks: Collection[str],
    tagged: Mapping[str, Tag] | None = None,
    tags: int = 3,
    max_pieces: int = 384,
    sure: float = 4.0,
) -> Path:
    """The same as a checkpoint. Every word must be one piece of MiniLM's vocabulary; `sure` is
    the logit of what a word says."""
    tokenizer = minilm_tokenizer()
    outputs = {"token_logits": _table(tokenizer, dict.fromkeys(marks, 1), 2, sure)}
    if kind == "labeler":
        outputs["tag_logits"] = _table(tokenizer, tagged or {}, tags, sure)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(_model(outputs))
    card = CheckpointCard(
        kind=kind,
        tags=tags if kind == "labeler" else None,  # type: ignore[arg-type]
        max_pieces=max_pieces,
        base_model="a table",
    )
    (folder / CARD_FILE).write_text(card.model_dump_json(), encoding="utf-8")
    return folder


def _table(tokenizer: Any, columns: Mapping[str, int], width: int, sure: float) -> Any:
    """(pieces of the vocabulary, width): what each piece adds to the logits."""
    import numpy as np

    table = np.zeros((tokenizer.get_vocab_size(), width), np.float32)
    for word, column in columns.items():
        piece = tokenizer.token_to_id(word)
        assert piece is not None, word
        table[piece, column] = sure
    table[0] = 100.0 * np.eye(width, dtype=np.float32)[0]  # padding, if it is not masked
    return table


def _model(outputs: Mapping[str, Any]) -> bytes:
    """Token logits are looked up; tag logits are summed over the input, and TERMINATE has 1."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants = [numpy_helper.from_array(table, f"{name}_table") for name, table in outputs.items()]
    nodes = [
        helper.make_node("Gather", ["token_logits_table", "input_ids"], ["token_logits"]),
    ]
    made = [helper.make_tensor_value_info("token_logits", TensorProto.FLOAT, ["b", "n", 2])]
    if "tag_logits" in outputs:
        width = outputs["tag_logits"].shape[1]
        bias = np.eye(width, dtype=np.float32)[Tag.TERMINATE]
        constants += [
            numpy_helper.from_array(bias, "bias"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([1]), "pieces"),
        ]
        nodes += [
            helper.make_node("Gather", ["tag_logits_table", "input_ids"], ["looked"]),
            helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
            helper.make_node("Mul", ["looked", "column"], ["weighted"]),
            helper.make_node("ReduceSum", ["weighted", "pieces"], ["summed"], keepdims=0),
            helper.make_node("Add", ["summed", "bias"], ["tag_logits"]),
        ]
        made.append(helper.make_tensor_value_info("tag_logits", TensorProto.FLOAT, ["b", width]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "n"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    graph = helper.make_graph(nodes, "words", inputs, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised
