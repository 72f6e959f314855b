"""A Llama for training, with the weights of a transformers model and fused linear layers.

Token embeddings (which are also the output head) and norms are frozen. With LoRA all weights are
frozen, which saves a third of the time of an update. Logits are computed only for tokens in the
loss: with a vocabulary of 49,152, the others would take a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from service.core.errors import ConfigurationError
from service.workshop.lean.functions import rms_norm, split_rotate, swiglu
from service.workshop.lean.packing import ALONE, Packed

HIDDEN = -1e30  # added to scores that attention must ignore


class Lora(NamedTuple):
    """Low-rank matrices of `rank` that are added to every weight. Their product is multiplied by
    `scale`."""

    rank: int
    scale: float


class LeanLlama(nn.Module):
    """A Llama with the weights of a transformers model. `export` writes them back into that
    model."""

    def __init__(
        self, source: Any, lora: Lora | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        dtype = dtype or fast_dtype()
        self.config = source.config
        if self.config.model_type != "llama" or not self.config.tie_word_embeddings:
            raise ConfigurationError(
                f"model: lean = true does not support {self.config.model_type}; it needs a Llama "
                "whose output layer shares the token embeddings"
            )
        body = source.model
        self.embedding = frozen(body.embed_tokens.weight, dtype)
        self.norm = frozen(body.norm.weight, dtype)
        self.layers = nn.ModuleList(
            LeanLayer(layer, self.config, lora, dtype) for layer in body.layers
        )
        self.epsilon = float(self.config.rms_norm_eps)
        self.frequencies: Tensor = body.rotary_emb.inv_freq.float()

    def forward(self, batch: Packed) -> Tensor:
        """Return logits [n, V] in float32 at the n positions where `batch.learnt` is true."""
        rows, length = batch.ids.shape
        x = functional.embedding(batch.ids, self.embedding).view(rows * length, -1)
        angles = batch.positions.unsqueeze(-1) * self.frequencies
        turn = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        mask = self._mask(batch.branches, x.dtype)
        for layer in self.layers:
            x = layer(x, rows, turn, mask)
        asked = x[batch.learnt.view(-1)]
        return functional.linear(rms_norm(asked, self.norm, self.epsilon), self.embedding).float()

    def _mask(self, branches: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the mask [B·K, (H/K)·L, L] that is added to the scores of the heads that share a
        key head."""
        rows, length = branches.shape
        keys = self.config.num_key_value_heads
        groups = self.config.num_attention_heads // keys
        own = branches.unsqueeze(1) == branches.unsqueeze(2)
        seen = torch.ones(length, length, dtype=torch.bool).tril_() & (
            own | (branches == ALONE).unsqueeze(1)
        )
        mask = torch.where(seen, 0.0, HIDDEN).to(dtype)
        if rows == 1:
            return mask.repeat(1, groups, 1)
        return mask.repeat(1, groups, 1).repeat_interleave(keys, dim=0)

    @torch.no_grad()
    def export(self, target: Any) -> None:
        """Write the weights into the transformers model."""
        for ours, theirs in zip(self.layers, target.model.layers, strict=True):
            assert isinstance(ours, LeanLayer)
            ours.export(theirs)


class LeanLayer(nn.Module):
    def __init__(self, source: Any, config: Any, lora: Lora | None, dtype: torch.dtype) -> None:
        super().__init__()
        attention, mlp = source.self_attn, source.mlp
        self.heads, self.keys = config.num_attention_heads, config.num_key_value_heads
        self.epsilon = float(config.rms_norm_eps)
        self.before = frozen(source.input_layernorm.weight, dtype)
        self.between = frozen(source.post_attention_layernorm.weight, dtype)
        self.qkv = Projection([attention.q_proj, attention.k_proj, attention.v_proj], lora, dtype)
        self.out = Projection([attention.o_proj], lora, dtype)
        self.gate_up = Projection([mlp.gate_proj, mlp.up_proj], lora, dtype)
        self.down = Projection([mlp.down_proj], lora, dtype)
        self.scale = float(attention.scaling)

    def forward(self, x: Tensor, rows: int, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Map x [B·L, W] to the same shape. `mask` [B·K, (H/K)·L, L] is added to the scores."""
        seen = self.qkv(rms_norm(x, self.before, self.epsilon))
        length = x.shape[0] // rows
        q, k, v = split_rotate(seen.view(rows, length, -1), self.heads, self.keys, turn, self.scale)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2))
        mixed = torch.bmm(torch.softmax(scores, -1), v).view(rows, self.heads, length, -1)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows * length, -1))
        both = self.gate_up(rms_norm(x, self.between, self.epsilon))
        added: Tensor = self.down(swiglu(both))
        return x + added

    def export(self, target: Any) -> None:
        attention, mlp = target.self_attn, target.mlp
        self.qkv.export([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out.export([attention.o_proj])
        self.gate_up.export([mlp.gate_proj, mlp.up_proj])
        self.down.export([mlp.down_proj])


class Projection(nn.Module):
    """Fused linear layers with the same input: `weight` [out, in] and, with LoRA, b·a in addition.

    With LoRA, y = x·weightᵀ + scale · (x·aᵀ)·bᵀ with a [rank, in] and b [out, rank]; b starts at
    zero. The layers share a.
    """

    def __init__(self, sources: Sequence[Any], lora: Lora | None, dtype: torch.dtype) -> None:
        super().__init__()
        weight = torch.cat([source.weight for source in sources])
        self.lora = lora
        if lora is None:
            self.weight = trained(weight, dtype)
            return
        self.weight = frozen(weight, dtype)
        bound = weight.shape[1] ** -0.5
        self.a = trained(torch.empty(lora.rank, weight.shape[1]).uniform_(-bound, bound), dtype)
        self.b = trained(torch.zeros(weight.shape[0], lora.rank), dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight)
        if self.lora is None:
            return y
        low = functional.linear(x, self.a)
        return torch.addmm(y, low, self.b.t(), alpha=self.lora.scale)

    def export(self, targets: Sequence[Any]) -> None:
        """Write the weight, or a and b with LoRA, to the layers of transformers or peft."""
        written = self.weight if self.lora is None else self.b
        sizes = [target.weight.shape[0] for target in targets]
        for target, part in zip(targets, torch.split(written, sizes), strict=True):
            if self.lora is None:
                target.weight.copy_(part)
            else:
                target.lora_A["default"].weight.copy_(self.a)
                target.lora_B["default"].weight.copy_(part)


def fast_dtype() -> torch.dtype:
    """Return bfloat16 if this CPU has AMX, which multiplies it six times faster than float32, else
    float32.

    AVX512_BF16 alone was measured at half of float32's rate, software at a fiftieth. The choice is
    not timed, because a run that resumes must make it again.
    """
    return torch.bfloat16 if torch.cpu._is_amx_tile_supported() else torch.float32


def frozen(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(weight.detach().to(dtype), requires_grad=False)


def trained(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(weight.detach().to(dtype).contiguous())
