"""Model folders of users, on torch: for trials and as a reference, since it runs a call at a time.

It is the embedded engine with another network. The queries of the last layer, which token signals
need, are tapped by an attention function that wraps transformers' `sdpa`; keys are those of the
cache. Importing this module imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from service.core.errors import ConfigurationError, EngineFailure
from service.core.extras import missing_packages
from service.encoders.in_process import import_transformers
from service.engines.in_process import InProcessGenerator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from service.engines.decoding import Network

    Array = NDArray[np.float32]

TAPPED: Final = "revelator_tapped_sdpa"


class LocalGenerator(InProcessGenerator):
    """A causal language model of transformers.

    `settings.model` is a folder, or a name in the local hub cache. On the CPU, weights become
    float32; on CUDA they keep their type. Raises ConfigurationError if no model is named.
    """

    @property
    def _model(self) -> str:
        if not self._settings.model:
            raise ConfigurationError(
                f"engines.{self._name} is of kind local and names no model. Set "
                f"engines.{self._name}.model to a model folder, or leave kind unset for the model "
                "that comes with the service."
            )
        return self._settings.model

    def _verify(self) -> None:
        name, folder = self._name, Path(self._model)
        if not folder.is_dir() and (folder.is_absolute() or str(folder).startswith((".", "~"))):
            raise EngineFailure(
                f"engine {name!r}: the folder {folder} does not exist; set engines.{name}.model to "
                "a model folder, with its full path"
            )
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise EngineFailure(
                f"engine {name!r}: there is no model at {folder} (config.json is missing); set "
                f"engines.{name}.model to a model folder, or engines.{name}.urls to a server"
            )

    def _load(self) -> tuple[Network, Any, frozenset[int]]:
        """Load model and tokenizer without network access. Raises EngineFailure with what is
        missing.
        """
        name, model = self._name, self._model
        what = f"engine {name!r} of kind local"
        if problem := missing_packages(what, ("torch", "transformers"), "transformers"):
            raise EngineFailure(f"{problem}, or set engines.{name}.kind")
        torch, transformers = import_transformers()
        torch.set_num_threads(max(1, min(torch.get_num_threads(), self._threads)))
        on_gpu = torch.cuda.is_available()
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(
                model, local_files_only=True, dtype="auto" if on_gpu else torch.float32
            )
        # includes the safetensors library's own errors for truncated weights
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise EngineFailure(
                f"engine {name!r} cannot load the model at {model}: {reason}; download the model "
                f"again, or set engines.{name}.model to another folder"
            ) from error
        network = TorchNetwork(loaded.to("cuda" if on_gpu else "cpu").eval())
        return network, tokenizer, _end_tokens(loaded, tokenizer)


class TorchNetwork:
    """A model and its cache. Each prompt is read as a whole."""

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config(decoder=True)
        self.context: int = getattr(config, "max_position_embeddings", None) or 4096
        self.vocabulary: int = config.vocab_size
        self.scale = 1.0
        self.forward = model  # tests replace it
        self.no_signals = _obstacle(config)
        self._device = model.device
        self._last = int(config.num_hidden_layers) - 1
        self._queries: Any = None
        self.keep(0)
        if self.no_signals is None:
            _tap(model)

    def run(self, ids: Sequence[int]) -> tuple[Array, Array]:
        """Run `ids`. Without signals, there are no heads in the queries."""
        import torch  # noqa: PLC0415

        tap = {"tap": self} if self.no_signals is None else {}
        with torch.inference_mode():
            output = self.forward(
                input_ids=torch.tensor([ids], device=self._device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
                **tap,
            )
            logits = output.logits[0, -1].float().cpu().numpy()
            if self._queries is None:
                return logits, logits[:0].reshape(0, len(ids), 1)
            return logits, self._queries[0].float().cpu().numpy()

    def see(self, layer: int, query: Any, scale: float) -> None:
        """Keep the queries (1, heads, tokens, size) of the last layer."""
        if layer == self._last:
            self._queries, self.scale = query, scale

    def keys(self) -> Array:
        """Return the keys of the last layer: (kv_heads, length, size)."""
        keys: Array = self._cache.layers[-1].keys[0].float().cpu().numpy()
        return keys

    def keep(self, length: int) -> int:
        """Drop the whole text."""
        from transformers import DynamicCache  # noqa: PLC0415

        self._cache: Any = DynamicCache()
        return 0


def _obstacle(config: Any) -> str | None:
    """Return the reason why a model has no signals, None if it has."""
    if config._attn_implementation != "sdpa":
        return f"its attention implementation is {config._attn_implementation!r}, not sdpa"
    kinds = getattr(config, "layer_types", None) or []
    slides = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    if (kinds and kinds[-1] != "full_attention") or (not kinds and slides):
        return "its last layer does not attend to the whole context"
    return None


def _tap(model: Any) -> None:
    """Let the model's attention pass its queries, rotated, to `tap.see`."""
    from transformers import AttentionInterface  # noqa: PLC0415
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask  # noqa: PLC0415

    def attend(module: Any, query: Any, *args: Any, tap: Any = None, **options: Any) -> Any:
        if tap is not None:
            scale = options.get("scaling") or query.shape[-1] ** -0.5
            tap.see(module.layer_idx, query, scale)
        return sdpa_attention_forward(module, query, *args, **options)

    AttentionInterface.register(TAPPED, attend)
    AttentionMaskInterface.register(TAPPED, sdpa_mask)
    model.set_attn_implementation(TAPPED)


def _end_tokens(network: Any, tokenizer: Any) -> frozenset[int]:
    ends = network.generation_config.eos_token_id if network.can_generate() else None
    ends = ends if isinstance(ends, list) else [ends]
    return frozenset(token for token in [*ends, tokenizer.eos_token_id] if token is not None)
