"""`train reader` trains an encoder to read: where an answer starts and ends in a passage, and
whether it is a span, yes, no or none.

`--data` names folders of people's questions and passages. The loss of a passage compares its places
with "no answer" (the first token); that of a question compares the places of all its passages
(shared normalisation: Clark and Gardner, 2018), so that scores of different passages compare.
Training ends after `minutes` of work, over which the learning rate falls to zero, also if the run
was interrupted. A later run starts from the weights of an earlier one (`base`).
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from service.core.errors import ConfigurationError
from service.encoders.answers import KINDS
from service.encoders.in_process import file_tokenizer, minilm_tokenizer
from service.encoders.reader import ReaderCard
from service.encoders.windows import SHORTEST, Windows
from service.workshop.encoders.made_up import (
    facts_of,
    made_up_rules,
    made_up_tables,
    write_smoke_questions,
)
from service.workshop.encoders.reader_export import export_reader, restore_reader
from service.workshop.encoders.reading import Example, Group, groups_of
from service.workshop.recipes.recipe import (
    LossPoint,
    Recipe,
    RecipeSettings,
    Score,
    TrainingData,
    TrainingResult,
    TrainingRun,
)
from service.workshop.recipes.run import POINTS

NONE = KINDS.index("none")
MOST = 30  # pieces of an answer
AT_ONCE = 16  # batches that are sorted by length together, against padding
CONFIG, TOKENIZER, WEIGHTS, STATE = "config.json", "tokenizer.json", "model.safetensors", "state.pt"


class ReaderTraining(RecipeSettings):
    base: Path = Field(
        Path(), description="Folder of an encoder, of an earlier run, or of a reader."
    )
    layers: int = Field(6, ge=1, description="Number of layers of the encoder that are used.")
    frozen: int = Field(2, ge=0, description="Lower layers that stay as they are.")
    longest: int = Field(160, ge=SHORTEST, le=512, description="Word pieces of an input.")
    tables: int = Field(2500, ge=0, description="Number of made-up questions about tables.")
    rules: int = Field(2500, ge=0, description="Number of made-up questions of yes or no.")
    facts: Path | None = Field(None, description="File of encyclopaedia passages for such facts.")
    minutes: float = Field(150.0, gt=0, description="Work after which training ends.")
    steps: int = Field(1_000_000, ge=1, description="Updates after which training ends.")
    batch: int = Field(12, ge=1, description="Questions of an update.")
    learning_rate: float = Field(5e-5, gt=0)
    head_rate: float = Field(5e-4, gt=0, description="Learning rate of the head.")
    warm_up: int = Field(40, ge=0)
    weight_decay: float = Field(0.01, ge=0)


class ReaderNetwork(nn.Module):
    """An encoder whose head gives start and end (windows, pieces, 2) and kind (windows, 4)."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.span = nn.Linear(encoder.config.hidden_size, 2)
        self.kind = nn.Linear(encoder.config.hidden_size, len(KINDS))
        cpu = torch.cpu.get_capabilities()
        self.lower_precision = any(cpu.get(name) for name in ("amx_bf16", "avx512_bf16"))

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training and self.lower_precision):
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        return self.span(hidden), self.kind(hidden[:, 0])


def open_network(folder: Path, layers: int) -> ReaderNetwork:
    """Return the network of an earlier run, of a reader as it ships, or of an encoder with a new
    head."""
    make: Any = AutoModel
    try:
        if (folder / WEIGHTS).exists():
            config = AutoConfig.from_pretrained(folder)
            config.num_hidden_layers = min(layers, config.num_hidden_layers)
            weights = load_file(folder / WEIGHTS)
            if "span.weight" not in weights:
                encoder = make.from_pretrained(folder, config=config, add_pooling_layer=False)
                return ReaderNetwork(encoder)
        else:
            values, arrays = restore_reader(folder)
            config = AutoConfig.for_model(**values)
            weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
        network = ReaderNetwork(make.from_config(config, add_pooling_layer=False))
        network.load_state_dict(weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"base: {folder} has no encoder to start from: {error}") from None
    return network


@dataclass(frozen=True)
class Batch:
    """Windows of some questions. `text` marks pieces of passages, `starts` and `ends` those where
    an answer begins and ends, `owner` the question of each window."""

    ids: Tensor
    mask: Tensor
    text: Tensor
    starts: Tensor
    ends: Tensor
    kinds: Tensor
    owner: Tensor


def batch_of(groups: Sequence[Group], windows: Windows, longest: int, rng: random.Random) -> Batch:
    made = [(n, *_window(each, windows, longest, rng)) for n, g in enumerate(groups) for each in g]
    shape = len(made), max(len(window.ids) for _, window, _, _ in made)
    ids = torch.full(shape, windows.padding)
    mask, text, starts, ends = (torch.zeros(shape, dtype=torch.bool) for _ in range(4))
    for row, (_, window, _, spans) in enumerate(made):
        ids[row, : len(window.ids)] = torch.tensor(window.ids)
        mask[row, : len(window.ids)] = True
        text[row, window.first : window.first + len(window.spans)] = True
        for start, end in spans:
            starts[row, window.first + start] = ends[row, window.first + end] = True
    kinds = torch.tensor([KINDS.index(kind) for _, _, kind, _ in made])
    return Batch(ids, mask, text, starts, ends, kinds, torch.tensor([n for n, *_ in made]))


def _window(example: Example, windows: Windows, longest: int, rng: random.Random) -> Any:
    """Return a window, one with an answer if there is any, its kind, and the answers' pieces."""
    ((*cut,),) = windows.cut(example.question, [(example.title, example.text)], longest)
    found = [(window, _pieces(example.spans, window.spans)) for window in cut]
    if with_answer := [pair for pair in found if pair[1]]:
        window, spans = rng.choice(with_answer)
        return window, example.kind, spans
    kind = "none" if example.kind == "span" else example.kind
    return rng.choice(cut) if kind == "none" else cut[0], kind, []


def _pieces(
    spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    found = []
    for left, right in spans:
        inside = [n for n, (a, b) in enumerate(offsets) if a < right and left < b]
        if inside and offsets[inside[0]][0] <= left and right <= offsets[inside[-1]][1]:
            found.append((inside[0], inside[-1]))
    return found


def loss_of(places: Tensor, kinds: Tensor, batch: Batch) -> Tensor:
    """Return the loss of the passages, of the questions with several of them, and of the kinds."""
    has_span = batch.starts.any(1)
    judged = has_span | (batch.kinds == NONE)  # yes and no have no place
    allowed = batch.text.clone()
    allowed[:, 0] = True
    questions = int(batch.owner.max()) + 1
    losses = [nn.functional.cross_entropy(kinds, batch.kinds)]
    for side, wanted in enumerate((batch.starts, batch.ends)):
        scores = places[..., side]
        target = wanted.clone()
        target[:, 0] = ~has_span
        losses.append(_marginal(scores, allowed, target)[judged].mean() / 2)
        together = [
            _marginal(scores[rows].flatten(), batch.text[rows].flatten(), wanted[rows].flatten())
            for n in range(questions)
            if (rows := batch.owner == n).sum() > 1 and has_span[rows].any()
        ]
        if together:
            losses.append(torch.stack(together).sum() / questions / 2)
    return torch.stack([each for each in losses if each.isfinite()]).sum()


def _marginal(scores: Tensor, allowed: Tensor, wanted: Tensor) -> Tensor:
    least = torch.tensor(-1e9)
    whole = torch.where(allowed, scores, least).logsumexp(-1)
    return whole - torch.where(wanted, scores, least).logsumexp(-1)


def read(settings: ReaderTraining) -> TrainingData[Group]:
    if not settings.data:
        raise ConfigurationError("data: name folders of questions and passages")
    rng = random.Random(settings.seed)
    train = [row for path in settings.data for row in groups_of(path, held_out=False, rng=rng)]
    train += made_up_tables(settings.tables, rng) + made_up_rules(settings.rules, rng)
    if settings.facts is not None:
        train += facts_of(settings.facts, settings.tables, rng)
    held = [row for path in settings.held_out for row in groups_of(path, held_out=True, rng=rng)]
    digest = hashlib.sha256(json.dumps([train, held]).encode()).hexdigest()
    return TrainingData(train, held, digest)


def batches(data: Sequence[Group], settings: ReaderTraining, skip: int) -> Iterator[list[Group]]:
    """Yield batches of similar length, without end, after the first `skip`."""
    done, epoch = 0, 0
    while True:
        rng = random.Random(f"{settings.seed} {epoch}")
        rows = rng.sample(list(data), len(data))
        size = settings.batch * AT_ONCE
        for start in range(0, len(rows), size):
            near = sorted(rows[start : start + size], key=lambda group: len(group[0].text))
            parts = [near[n : n + settings.batch] for n in range(0, len(near), settings.batch)]
            for part in rng.sample(parts, len(parts)):
                done += 1
                if done > skip:
                    yield part
        epoch += 1


class Fitting:
    """The state of a training, which is saved and resumed as a whole."""

    def __init__(self, settings: ReaderTraining, data: Sequence[Group], run: TrainingRun) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.data, self.run = settings, data, run
        self.windows = Windows(file_tokenizer(settings.base / TOKENIZER))
        self.network = open_network(settings.base, settings.layers)
        lower = [p for n, p in self.network.encoder.named_parameters() if n.startswith("embed")]
        for layer in self.network.encoder.encoder.layer[: settings.frozen]:
            lower += layer.parameters()
        for parameter in lower:
            parameter.requires_grad_(False)
        head = [*self.network.span.parameters(), *self.network.kind.parameters()]
        upper = [p for p in self.network.encoder.parameters() if p.requires_grad]
        self.rates = (settings.learning_rate, settings.head_rate)
        self.optimizer = torch.optim.AdamW(
            [{"params": upper}, {"params": head}], weight_decay=settings.weight_decay
        )
        self.step, self.elapsed, self.losses = 0, 0.0, list[LossPoint]()
        self.stopped = False
        state = run.folder / POINTS / STATE
        if run.resume and state.exists():
            saved = torch.load(state, weights_only=True)
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.elapsed = saved["step"], saved["elapsed"]
            self.losses = [LossPoint(*each) for each in saved["losses"]]
            run.say(f"resumed at step {self.step}")

    def save(self) -> None:
        """Save the state, and the weights as they are, in one step each."""
        folder = self.run.folder / POINTS
        folder.mkdir(parents=True, exist_ok=True)
        losses = [(each.step, each.loss, each.learning_rate) for each in self.losses]
        state = {
            "network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(),
            "step": self.step, "elapsed": self.elapsed, "losses": losses,
        }  # fmt: skip
        torch.save(state, folder / "state.new")
        (folder / "state.new").replace(folder / STATE)
        save_network(self.network, self.settings.base, self.run.folder)

    def fit(self) -> None:
        settings, recent = self.settings, list[float]()
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopped", True))
        self.network.train()
        for groups in batches(self.data, settings, self.step):
            left = 1 - max(self.step / settings.steps, self.elapsed / 60 / settings.minutes)
            if left <= 0 or self.stopped:
                break
            began = time.monotonic()
            recent.append(
                self._update(groups, left * min(1, (self.step + 1) / (settings.warm_up + 1)))
            )
            self.elapsed += time.monotonic() - began
            self.step += 1
            if self.step % settings.log_every == 0:
                loss = float(np.mean(recent))
                self.losses.append(LossPoint(self.step, loss, left * settings.learning_rate))
                self.run.say(f"step {self.step}  loss {loss:.4f}  {self.elapsed / 60:.1f} min")
                recent.clear()
            if self.step % settings.save_every == 0:
                self.save()
        self.save()
        if self.stopped:
            raise SystemExit("stopped; continue with --resume")

    def _update(self, groups: Sequence[Group], factor: float) -> float:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        rng = random.Random(self.step)
        batch = batch_of(groups, self.windows, self.settings.longest, rng)
        places, kinds = self.network(batch.ids, batch.mask.long())
        loss: Any = loss_of(places, kinds, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.item())


def save_network(network: ReaderNetwork, base: Path, folder: Path) -> None:
    """Write the weights, the encoder's configuration and the tokenizer."""
    save_file(network.state_dict(), folder / f"{WEIGHTS}.new")
    (folder / f"{WEIGHTS}.new").replace(folder / WEIGHTS)
    network.encoder.config.to_json_file(folder / CONFIG)
    if base.resolve() != folder.resolve():
        shutil.copyfile(base / TOKENIZER, folder / TOKENIZER)


def fit_reader(
    settings: ReaderTraining, data: TrainingData[Group], run: TrainingRun
) -> TrainingResult:
    fitting = Fitting(settings, data.train, run)
    fitting.fit()
    card = ReaderCard(longest=settings.longest, base_model=settings.base.name)
    export_reader(run.folder, card, run.folder)
    answered = [group for group in data.held_out if group[0].kind == "span"]
    if not answered:
        return TrainingResult(fitting.losses)
    right = [_exact(fitting, group[0]) for group in answered]
    return TrainingResult(
        fitting.losses, {"exact": Score(sum(right) / len(right), 1 / MOST, len(right))}
    )


@torch.inference_mode()
def _exact(fitting: Fitting, example: Example) -> bool:
    """Whether the best places of the passage with the answer are its own."""
    fitting.network.eval()
    batch = batch_of([(example,)], fitting.windows, fitting.settings.longest, random.Random(0))
    places, _ = fitting.network(batch.ids, batch.mask.long())
    best = torch.where(batch.text.unsqueeze(-1), places, torch.tensor(-1e9)).argmax(1)[0]
    return bool(batch.starts[0, best[0]] and batch.ends[0, best[1]])


def smoke(folder: Path) -> ReaderTraining:
    """Write a small random encoder and questions whose answers stand behind the same word."""
    torch.manual_seed(0)
    base = folder / "base"
    base.mkdir(parents=True, exist_ok=True)
    tokenizer = minilm_tokenizer()
    tokenizer.save(str(base / TOKENIZER))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=256, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    make: Any = BertModel
    encoder = make(config, add_pooling_layer=False)
    save_file(encoder.state_dict(), base / WEIGHTS)
    config.to_json_file(base / CONFIG)
    write_smoke_questions(folder)
    return ReaderTraining(
        data=(folder,), held_out=(folder,), base=base, layers=2, frozen=0, longest=SHORTEST,
        steps=80, batch=16, learning_rate=3e-3, head_rate=3e-3, warm_up=10, log_every=10,
        save_every=50, tables=0, rules=0,
    )  # fmt: skip


RECIPE: Recipe[ReaderTraining, Group] = Recipe(
    name="reader",
    settings=ReaderTraining,
    presets={},
    read=read,
    fit=fit_reader,
    smoke=smoke,
)
