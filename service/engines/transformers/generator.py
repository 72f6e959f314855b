"""Model folders of users, on torch. Importing this module does not import torch."""

from __future__ import annotations

from pathlib import Path

from service.core.errors import ConfigurationError, EngineFailure
from service.core.extras import lacking
from service.core.offline import import_transformers
from service.engines.batch.generator import BatchedGenerator
from service.engines.batch.worker import BatchEngine


class LocalGenerator(BatchedGenerator):
    """A causal language model of transformers.

    `settings.model` is a folder, or a name in the local hub cache. On the CPU, weights become
    float32, so that the tokens of a call do not depend on the other calls. The states of common
    prompt beginnings are cached, at most 512 MB. Raises ConfigurationError if no model is named.
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

    def _load(self) -> BatchEngine:
        """Load model and tokenizer without network access. Raises EngineFailure with what is
        missing.

        On CUDA the weights keep their type.
        """
        name, model = self._name, self._model
        _check_folder(name, Path(model))
        try:
            torch, transformers = import_transformers()
        except ImportError as error:
            raise EngineFailure(
                lacking(f"engine {name!r} of kind local", error, "transformers")
                + f", or set engines.{name}.kind"
            ) from None
        from service.engines.encoding import PromptEncoder  # noqa: PLC0415
        from service.engines.transformers.engine import Engine  # noqa: PLC0415

        torch.set_num_threads(max(1, min(torch.get_num_threads(), self._threads)))
        on_gpu = torch.cuda.is_available()
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
            network = transformers.AutoModelForCausalLM.from_pretrained(
                model, local_files_only=True, dtype="auto" if on_gpu else torch.float32
            )
        # includes the safetensors library's own errors for truncated weights
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise EngineFailure(
                f"engine {name!r} cannot load the model at {model}: {reason}; download the model "
                f"again, or set engines.{name}.model to another folder"
            ) from error
        network = network.to("cuda" if on_gpu else "cpu").eval()
        encoder = PromptEncoder(tokenizer, self._settings.template_variables)
        return Engine(name, network, encoder, constrained=self._constrained)


def _check_folder(name: str, folder: Path) -> None:
    if not folder.is_dir() and (folder.is_absolute() or str(folder).startswith((".", "~"))):
        raise EngineFailure(
            f"engine {name!r}: the folder {folder} does not exist; set engines.{name}.model to a "
            "model folder, with its full path"
        )
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise EngineFailure(
            f"engine {name!r}: there is no model at {folder} (config.json is missing); set "
            f"engines.{name}.model to a model folder, or engines.{name}.urls to a server"
        )
