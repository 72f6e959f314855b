"""Steps of both model runners, by hand: the plugin between vLLM's own classes, without a server.

    VLLM_PYTHON -m tests.integration.vllm_steps MODEL

The platform's attention layer with its kernel, cache, builder and metadata; the processors as V1
and V2 load them, with the updates of V1 and the context of V2. What a step shows is compared with
whole matrices. Prints a line per runner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention import Attention
from vllm.plugins import load_general_plugins
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.sample.logits_processor import BatchUpdateBuilder, build_logitsprocs

try:
    from vllm.v1.worker.gpu.sample.logits_processor import (
        LogitsContext,
        build_custom_logits_processors,
    )
except ImportError:  # before 0.31, which runs V1 where a processor is installed
    LogitsContext = None

from service.vllm_plugin.logits import SignalsProcessor
from service.vllm_plugin.receiver import RECEIVER, Inbox, floats
from service.vllm_plugin.tap import TAP, Wish
from tests.unit.vllm_plugin import fake_runner
from tests.unit.vllm_plugin.fake_runner import HEADS, KV_HEADS, FakeRequest, Sent, params_of

SIZE = BLOCK = 32  # the least that the kernel has
fake_runner.SIZE = SIZE
SENT = TAP._sender = Sent()
Entering = Callable[[Sequence[FakeRequest]], Any]  # tells the processor; returns V2's context


class Engine:
    """One attention layer over a cache of 32 blocks, a block or more for each request."""

    def __init__(self, config: Any) -> None:
        self.layer = Attention(HEADS, SIZE, 0.3, KV_HEADS, prefix="model.layers.7.self_attn.attn")
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=torch.float32
        )
        builder: Any = self.layer.attn_backend.get_builder_cls()
        self.builder = builder(spec, [self.layer.layer_name], config, torch.device("cpu"))
        self.cache = torch.zeros(32, KV_HEADS, BLOCK, 2 * SIZE)

    def step(self, processor: Any, enter: Entering, *batch: tuple[FakeRequest, int]) -> None:
        requests = [request for request, _ in batch]
        context = enter(requests)
        counts = [count for _, count in batch]
        query, key, logits = (
            torch.cat([getattr(r, name)[r.computed :][:count] for r, count in batch])
            for name in ("query", "key", "logits")
        )
        positions = [range(r.computed, r.computed + count) for r, count in batch]
        table = torch.tensor([[2 * r.seed, 2 * r.seed + 1] for r in requests], dtype=torch.int32)
        places = zip(table.tolist(), positions, strict=True)
        slots = [blocks[p // BLOCK] * BLOCK + p % BLOCK for blocks, own in places for p in own]
        starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        ends = torch.tensor([own.stop for own in positions], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=ends,
            seq_lens_cpu_upper_bound=ends,
            num_reqs=len(batch),
            num_actual_tokens=sum(counts),
            max_query_len=max(counts),
            max_seq_len=int(ends.max()),
            block_table_tensor=table,
            slot_mapping=torch.tensor(slots),
        )
        metadata = self.builder.build(0, common)
        self.layer.impl.do_kv_cache_update(self.layer, key, key, self.cache, common.slot_mapping)
        output = torch.empty(sum(counts), HEADS, SIZE)
        self.layer.impl.forward(self.layer, query, key, key, self.cache, metadata, output=output)
        torch.testing.assert_close(output, expected_output(batch), atol=1e-5, rtol=0)
        last = logits[np.cumsum(counts) - 1]
        if context is not None:
            assert torch.equal(processor.apply(last.clone(), *context), last)
        for request, count in batch:
            request.computed += count


def expected_output(batch: Sequence[tuple[FakeRequest, int]]) -> Tensor:
    """The attention itself, with keys as values."""
    parts = []
    for request, count in batch:
        values = request.key.repeat_interleave(HEADS // KV_HEADS, dim=1)
        whole = torch.einsum("hqk,khd->qhd", request.matrix, values)
        parts.append(whole[request.computed :][:count])
    return torch.cat(parts)


def sampling(request: FakeRequest) -> SamplingParams:
    extra = params_of(request).extra_args
    params = SamplingParams(temperature=0.0, extra_args=extra)
    if request.wish is not None:
        RECEIVER.calls[request.name] = Inbox()
    SignalsProcessor.validate_params(params)  # type: ignore[attr-defined]
    return params


def of_v1(config: Any) -> tuple[Any, Entering]:
    every = build_logitsprocs(config, torch.device("cpu"), False, False).non_argmax_invariant
    (processor,) = (each for each in every if isinstance(each, SignalsProcessor))
    places, updates = [], BatchUpdateBuilder()

    def enter(batch: Sequence[FakeRequest]) -> tuple[()]:
        if [request.name for request in batch] != places:
            for n in range(len(batch), len(places)):
                updates.removed_append(n)
            for n, request in enumerate(batch):
                updates.added.append((n, sampling(request), request.prompt, []))
            places[:] = [request.name for request in batch]
        processor.update_state(updates.get_and_reset(len(batch)))
        return ()

    return processor, enter


def of_v2(config: Any) -> tuple[Any, Entering]:
    names = ("all_token_ids", "prompt_len", "prefill_len", "total_len")
    state = SimpleNamespace(
        device=torch.device("cpu"), max_num_reqs=8, vocab_size=768, **dict.fromkeys(names)
    )
    every = build_custom_logits_processors(config, state, False)
    (processor,) = (each for each in every if isinstance(each, SignalsProcessor))
    slots: dict[str, int] = {}

    def enter(batch: Sequence[FakeRequest]) -> tuple[LogitsContext]:
        for request in batch:
            if request.name not in slots:
                slots[request.name] = 5 - len(slots)
                asks = processor.add_request(slots[request.name], sampling(request))
                assert asks == (request.wish is not None)
        order = np.array([slots[request.name] for request in batch])
        rows = torch.from_numpy(order)
        return (LogitsContext(rows, rows, order, rows, rows, rows, order),)

    return processor, enter


def check(runner: str, engine: Engine, processor: Any, enter: Entering) -> None:
    prompt, other = list(range(40)), FakeRequest("plain", [1] * 9, 20, None, 3)
    one = FakeRequest("one", prompt, 48, Wish("one", "", 40, 8), 1)
    two = FakeRequest("two", prompt, 46, Wish("two", "", 40, 6), 2)
    read = FakeRequest("read", prompt, 40, Wish("read", "", 40, score=True, rows=(35,)), 4)
    engine.step(processor, enter, (other, 9), (one, 30), (read, 17))
    engine.step(processor, enter, (one, 10), (two, 40), (other, 1), (read, 23))
    for _ in range(4):
        engine.step(processor, enter, (two, 1), (other, 1), (one, 1))
    engine.step(processor, enter, (one, 1))
    assert TAP.failure is None, TAP.failure
    for request in (one, two, read):
        for packet in SENT.packets.pop(request.name):
            RECEIVER.calls[request.name].put(packet)
    for draft in (one, two):
        inbox, (entropy, _) = RECEIVER.calls[draft.name], draft.numbers
        own = draft.matrix[:, 40 : draft.computed, 40 : draft.computed - 1]
        expected = own.tril(-1).amax(1).mean(0)
        means = torch.from_numpy(inbox.means.copy())
        torch.testing.assert_close(means, expected, atol=1e-6, rtol=0)
        found = torch.tensor([number[0] for number in inbox.numbers])
        torch.testing.assert_close(found, entropy[39 : draft.computed], atol=1e-5, rtol=1e-5)
    inbox, matrix = RECEIVER.calls["read"], read.matrix
    means = torch.from_numpy(inbox.means.copy())
    torch.testing.assert_close(means, matrix.amax(1).mean(0), atol=1e-6, rtol=0)
    row = torch.from_numpy(floats(inbox.rows_at[35]).copy())
    torch.testing.assert_close(row, matrix[:, 35, :36].mean(0), atol=1e-6, rtol=0)
    TAP.release(["one", "two", "read"])
    print(f"{runner}: maxima, rows and entropies are those of the whole matrices")


def main() -> None:
    load_general_plugins()
    config = EngineArgs(model=sys.argv[1], dtype="float32").create_engine_config()
    with set_current_vllm_config(config):
        engine = Engine(config)
        assert TAP.obstacle is None, TAP.obstacle
        check("V1", engine, *of_v1(config))
        if LogitsContext is None:
            print("V2: this vLLM has no interface for logits processors")
        else:
            check("V2", engine, *of_v2(config))


if __name__ == "__main__":
    main()
