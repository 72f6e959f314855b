"""`train extractor` trains an encoder to read: where an answer starts and ends in a passage, and
whether it is a span, yes, no or none.

`--data` names folders of people's questions and passages. The loss of a passage compares its places
with "no answer" (the first token); that of a question compares the places of all its passages
(shared normalisation: Clark and Gardner, 2018), so that scores of different passages compare.
`base` is an encoder, or the folder of an earlier run, whose training goes on.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, Trainer

from service.core.errors import ConfigurationError
from service.core.files import save_whole
from service.core.settings.base import Section
from service.encoders.answers import KINDS
from service.encoders.extractor import CARD_FILE, MODEL_FILE, OUTPUTS, TOKENIZER_FILE, ExtractorCard
from service.encoders.in_process import file_tokenizer
from service.encoders.windows import SHORTEST, Windows
from service.workshop.recipes.export import export_onnx
from service.workshop.recipes.reading import Example, Group, groups_of
from service.workshop.recipes.run import Recipe, Score, TrainingRun

NONE: Final = KINDS.index("none")
MOST: Final = 30  # pieces of an answer
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class ExtractorSettings(Section):
    base: Path = Field(description="Folder of an encoder, or of an earlier run.")
    layers: int = Field(6, ge=1, description="Number of layers of the encoder that are used.")
    frozen: int = Field(2, ge=0, description="Lower layers that stay as they are.")
    longest: int = Field(160, ge=SHORTEST, le=512, description="Word pieces of an input.")
    head_rate: float = Field(5e-4, gt=0, description="Learning rate of the head.")


class ExtractorNetwork(nn.Module):
    """An encoder whose head gives start and end (windows, pieces, 2) and kind (windows, 4)."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        encoder.pooler = None
        self.span = nn.Linear(encoder.config.hidden_size, 2)
        self.kind = nn.Linear(encoder.config.hidden_size, len(KINDS))

    def forward(self, ids: Tensor, mask: Tensor, **wanted: Tensor) -> Any:
        """Return the places and the kinds or, with the other fields of `collate`, the loss too."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        places, kinds = self.span(hidden), self.kind(hidden[:, 0])
        if not wanted:
            return places, kinds
        loss = loss_of(places, kinds, **wanted)
        return {"loss": loss, "places": places, "kinds": kinds}


def open_network(folder: Path, layers: int) -> ExtractorNetwork:
    """Return the network of an earlier run, or of an encoder with a new head."""
    try:
        make: Any = AutoModel
        config = AutoConfig.from_pretrained(folder)
        config.num_hidden_layers = min(layers, config.num_hidden_layers)
        weights = load_file(folder / WEIGHTS)
        if "span.weight" not in weights:
            return ExtractorNetwork(make.from_pretrained(folder, config=config))
        network = ExtractorNetwork(make.from_config(config))
        network.load_state_dict(weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"base: {folder} has no encoder to start from: {error}") from None
    return network


def encoded(example: Example, windows: Windows, longest: int) -> dict[str, Any]:
    """Return one window of a passage, if possible one with an answer, its kind, and the answers'
    pieces."""
    ((*cut,),) = windows.cut(example.question, [(example.title, example.text)], longest)
    found = [(window, _pieces(example.spans, window.spans)) for window in cut]
    rng = random.Random(f"{example.question} {example.text}")
    if with_answer := [pair for pair in found if pair[1]]:
        window, spans = rng.choice(with_answer)
        return {"window": window, "kind": example.kind, "spans": spans}
    kind = "none" if example.kind == "span" else example.kind
    return {"window": rng.choice(cut) if kind == "none" else cut[0], "kind": kind, "spans": []}


def _pieces(
    spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    found = []
    for left, right in spans:
        inside = [n for n, (a, b) in enumerate(offsets) if a < right and left < b]
        if inside and offsets[inside[0]][0] <= left and right <= offsets[inside[-1]][1]:
            found.append((inside[0], inside[-1]))
    return found


def collate(groups: Sequence[Sequence[dict[str, Any]]], padding: int) -> dict[str, Tensor]:
    """Return the windows of some questions as tensors.

    `text` marks pieces of passages, `starts` and `ends` those where an answer begins and ends,
    `owner` the question of each window.
    """
    made = [(number, row) for number, group in enumerate(groups) for row in group]
    shape = len(made), max(len(row["window"].ids) for _, row in made)
    ids = torch.full(shape, padding)
    mask, text, starts, ends = (torch.zeros(shape, dtype=torch.bool) for _ in range(4))
    for at, (_, row) in enumerate(made):
        window = row["window"]
        ids[at, : len(window.ids)] = torch.tensor(window.ids)
        mask[at, : len(window.ids)] = True
        text[at, window.first : window.first + len(window.spans)] = True
        for start, end in row["spans"]:
            starts[at, window.first + start] = ends[at, window.first + end] = True
    kinds = torch.tensor([KINDS.index(row["kind"]) for _, row in made])
    owner = torch.tensor([number for number, _ in made])
    return {
        "ids": ids, "mask": mask.long(), "text": text, "starts": starts, "ends": ends,
        "kind": kinds, "owner": owner,
    }  # fmt: skip


def loss_of(
    places: Tensor,
    kinds: Tensor,
    text: Tensor,
    starts: Tensor,
    ends: Tensor,
    kind: Tensor,
    owner: Tensor,
) -> Tensor:
    """Return the loss of the passages, of the questions with several of them, and of the kinds."""
    has_span = starts.any(1)
    judged = has_span | (kind == NONE)  # yes and no have no place
    allowed = text.clone()
    allowed[:, 0] = True
    questions = int(owner.max()) + 1
    losses = [nn.functional.cross_entropy(kinds, kind)]
    for side, wanted in enumerate((starts, ends)):
        scores = places[..., side]
        target = wanted.clone()
        target[:, 0] = ~has_span
        losses.append(_marginal(scores, allowed, target)[judged].mean() / 2)
        together = [
            _marginal(scores[rows].flatten(), text[rows].flatten(), wanted[rows].flatten())
            for n in range(questions)
            if (rows := owner == n).sum() > 1 and has_span[rows].any()
        ]
        if together:
            losses.append(torch.stack(together).sum() / questions / 2)
    return torch.stack([loss for loss in losses if loss.isfinite()]).sum()


def _marginal(scores: Tensor, allowed: Tensor, wanted: Tensor) -> Tensor:
    least = torch.tensor(-1e9, device=scores.device)
    whole = torch.where(allowed, scores, least).logsumexp(-1)
    return whole - torch.where(wanted, scores, least).logsumexp(-1)


def train(settings: ExtractorSettings, run: TrainingRun) -> tuple[Any, dict[str, Score]]:
    rng = random.Random(run.arguments.seed)
    groups = [row for path in run.data for row in groups_of(path, held_out=False, rng=rng)]
    held_out = [row for path in run.held_out for row in groups_of(path, held_out=True, rng=rng)]
    if not groups:
        raise ConfigurationError(f"data: no questions in {', '.join(map(str, run.data))}")
    torch.manual_seed(run.arguments.seed)
    network = open_network(settings.base, settings.layers)
    windows = Windows(file_tokenizer(settings.base / TOKENIZER_FILE))
    rows: Any = [[encoded(row, windows, settings.longest) for row in group] for group in groups]
    trainer = Trainer(
        network, run.arguments, lambda groups: collate(groups, windows.padding), train_dataset=rows,
        optimizers=(_optimizer(network, settings, run.arguments), None),
    )  # fmt: skip
    if not run.fit(trainer):
        return trainer, {}
    network.cpu().eval()
    save_network(network, settings.base, run.folder)
    card = ExtractorCard(longest=settings.longest, base_model=settings.base.name)
    export_extractor(network, card, run.folder)
    answered = [group for group in held_out if group[0].kind == "span"]
    right = [_exact(network, windows, settings.longest, group) for group in answered]
    scores = {"exact": Score(sum(right) / len(right), 1 / MOST, len(right))} if right else {}
    return trainer, scores


def _optimizer(network: ExtractorNetwork, settings: ExtractorSettings, arguments: Any) -> Any:
    """Return AdamW with a rate of its own for the head, for the layers that are not frozen."""
    encoder = network.encoder
    encoder.embeddings.requires_grad_(False)
    for layer in encoder.encoder.layer[: settings.frozen]:
        layer.requires_grad_(False)
    upper: list[Any] = [p for p in encoder.parameters() if p.requires_grad]
    head = [*network.span.parameters(), *network.kind.parameters()]
    return torch.optim.AdamW(
        list[dict[str, Any]](({"params": upper}, {"params": head, "lr": settings.head_rate})),
        lr=arguments.learning_rate, weight_decay=arguments.weight_decay,
    )  # fmt: skip


def save_network(network: ExtractorNetwork, base: Path, folder: Path) -> None:
    """Write the weights, the encoder's configuration and the tokenizer."""
    save_file(network.state_dict(), folder / WEIGHTS)
    network.encoder.config.to_json_file(folder / CONFIG)
    if base.resolve() != folder.resolve():
        shutil.copyfile(base / TOKENIZER_FILE, folder / TOKENIZER_FILE)


def export_extractor(network: ExtractorNetwork, card: ExtractorCard, folder: Path) -> None:
    """Write `model.onnx` and `extractor.json` beside the tokenizer, for the service."""
    export_onnx(network, ("ids", "mask"), OUTPUTS, folder / MODEL_FILE)
    save_whole(folder / CARD_FILE, card.model_dump_json(indent=2) + "\n")


@torch.inference_mode()
def _exact(network: ExtractorNetwork, windows: Windows, longest: int, group: Group) -> bool:
    """Whether the best places of the passage with the answer are its own."""
    batch = collate([[encoded(group[0], windows, longest)]], windows.padding)
    places, _ = network(batch["ids"], batch["mask"])
    best = torch.where(batch["text"].unsqueeze(-1), places, torch.tensor(-1e9)).argmax(1)[0]
    return bool(batch["starts"][0, best[0]] and batch["ends"][0, best[1]])


RECIPE: Final[Recipe[ExtractorSettings]] = Recipe(
    settings=ExtractorSettings,
    presets={
        "mpnet": {
            "learning_rate": 5e-5, "weight_decay": 0.01, "warmup_steps": 40,
            "per_device_train_batch_size": 12, "bf16": True,
        },
    },
    train=train,
)  # fmt: skip
