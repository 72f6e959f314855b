"""Opens a model folder, in the engine's thread: torch and transformers are imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.core.errors import EngineFailure
from service.core.offline import import_transformers

if TYPE_CHECKING:
    from service.engines.transformers.engine import Engine


def load_engine(
    name: str, model: str, *, threads: int, constrained: bool, variables: Mapping[str, Any]
) -> Engine:
    """Load model and tokenizer, without a network. Raises EngineFailure saying what is missing.

    `model` is a folder or a name in the local hub cache. On CUDA the weights keep their type.
    `variables`: for the chat template.
    """
    _check_folder(name, Path(model))
    try:
        torch, transformers = import_transformers()
    except ImportError as error:
        raise EngineFailure(
            f"engine {name!r} is of kind local and needs {error.name}: pip install "
            f"'revelator[transformers]', or set engines.{name}.kind"
        ) from None
    from service.engines.encoding import PromptEncoder  # noqa: PLC0415
    from service.engines.transformers.engine import Engine  # noqa: PLC0415

    torch.set_num_threads(max(1, min(torch.get_num_threads(), threads)))
    on_gpu = torch.cuda.is_available()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            model, local_files_only=True, dtype="auto" if on_gpu else torch.float32
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise EngineFailure(f"engine {name!r} cannot load the model at {model}: {reason}") from None
    network = network.to("cuda" if on_gpu else "cpu").eval()
    return Engine(name, network, PromptEncoder(tokenizer, variables), constrained=constrained)


def _check_folder(name: str, folder: Path) -> None:
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise EngineFailure(
            f"engine {name!r}: there is no model at {folder} (config.json is missing); set "
            f"engines.{name}.model to a model folder, or engines.{name}.urls to a server"
        )
