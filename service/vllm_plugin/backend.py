"""The interface to vLLM's engine client. Tests replace `AttentionBackend`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from service.engines.base import FinishReason
from service.vllm_plugin.tracking import Wish

Output = tuple[Sequence[int], FinishReason | None]  # new ids, and why they are the last


class UnknownModel(ValueError):
    """The server serves no model or adapter of that name."""


class AttentionBackend(Protocol):
    context_tokens: int
    vocabulary: int

    def generate(
        self, ids: Sequence[int], wish: Wish, max_tokens: int, model: str | None
    ) -> AsyncGenerator[Output, None]:
        """Yield the ids of greedy decoding as they are generated; closing aborts."""

    def check_model(self, model: str | None) -> None:
        """Raise UnknownModel if the model or adapter is not served."""

    async def rpc(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every worker and return the results, by rank."""


class VllmBackend:
    """A Backend over vLLM's `EngineClient` and its table of served models."""

    def __init__(self, engine: Any, models: Any) -> None:
        self.context_tokens: int = engine.model_config.max_model_len
        self.vocabulary: int = engine.model_config.get_vocab_size()
        self._engine = engine
        self._models = models

    async def generate(
        self, ids: Sequence[int], wish: Wish, max_tokens: int, model: str | None
    ) -> AsyncGenerator[Output, None]:
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_reading_prefix_cache=wish.score or None,  # each row must be computed
            extra_args=wish.to_args(),
        )
        prompt = {"prompt_token_ids": list(ids)}
        outputs = self._engine.generate(
            prompt, params, wish.call, lora_request=self._adapter(model)
        )
        try:
            async for output in outputs:
                (completion,) = output.outputs
                reason = completion.finish_reason
                if reason not in (None, "stop", "length"):
                    raise RuntimeError(f"vLLM ended the request: {reason}")
                yield completion.token_ids, reason
        finally:
            await outputs.aclose()

    def check_model(self, model: str | None) -> None:
        self._adapter(model)

    async def rpc(self, method: str, *args: Any) -> list[Any]:
        return await self._engine.collective_rpc(method, args=args)  # type: ignore[no-any-return]

    def _adapter(self, model: str | None) -> Any:
        """Return the LoRA request of a served adapter, None for the base model."""
        if model is None or self._models.is_base_model(model):
            return None
        adapter = self._models.lora_requests.get(model)
        if adapter is None:
            raise UnknownModel(f"the model {model!r} is not served here; see /v1/models")
        return adapter
