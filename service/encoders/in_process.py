"""Models in this process: loading, running in a thread, and batching of inputs.

Used by the encoders, the embedders, the cross-encoder and the engines in this process. Importing
this module does not import numpy, ONNX Runtime or torch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ValidationError

from service.core.errors import ConfigurationError, RevelatorError
from service.core.native import is_failure
from service.core.validation import explain

Model = TypeVar("Model")
Card = TypeVar("Card", bound=BaseModel)
T = TypeVar("T")
# Set before torch and transformers are first imported. By default OpenMP threads spin while they
# wait; on cores that others use too, that made a forward pass five to fifteen times as long.
VARIABLES: Final = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE",
}  # fmt: skip
PACK: Final = 1024  # pieces of a pass, with padding; the data of a layer then fit the cache
PADDING: Final = 0.05  # share of padding in a pass: on a processor padding costs as much as text


class Gone(Exception):
    """Raised by work whose caller has left. Callers never see it."""


class InProcess(Generic[Model]):
    """A model that is loaded at its first use and processes one call at a time, in a thread.
    `model` is None until then.

    A thread cannot be stopped: if a caller leaves, the next one waits until its work ends. Work
    that checks `gone` ends early.
    """

    def __init__(self, name: str, load: Callable[[], Model], failure: type[RevelatorError]) -> None:
        """`load` raises RevelatorError; `failure` is raised for any other error, with `name`."""
        self._name, self._load, self._failure = name, load, failure
        self._turn = anyio.Lock()
        self._running = threading.Lock()
        self.model: Model | None = None

    async def run(self, work: Callable[[Model, threading.Event], T]) -> T:
        """Return the result of `work(model, gone)`."""
        gone = threading.Event()
        async with self._turn:
            try:
                return await anyio.to_thread.run_sync(self._run, work, gone, abandon_on_cancel=True)
            finally:
                gone.set()

    def _run(self, work: Callable[[Model, threading.Event], T], gone: threading.Event) -> T:
        with self._running:
            if gone.is_set():
                raise Gone
            try:
                if self.model is None:
                    self.model = self._load()
                return work(self.model, gone)
            except (RevelatorError, Gone):
                raise
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise self._failure(f"{self._name} failed: {error}") from error


async def in_batches(
    texts: Sequence[str], size: int, run: Callable[[list[str]], Awaitable[Sequence[T]]]
) -> list[T]:
    """Run texts of similar length together, at most `size` at once. Returns the results in the
    order of `texts`."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    results: dict[int, T] = {}
    for start in range(0, len(order), size):
        part = order[start : start + size]
        results |= zip(part, await run([texts[index] for index in part]), strict=True)
    return [results[index] for index in range(len(texts))]


def packs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Return the indices of inputs, shortest first, in groups of similar length with at most PACK
    pieces each. A longer input is a group of its own."""
    pack: list[int] = []
    pieces = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        padded = lengths[index] * (len(pack) + 1)
        if pack and (padded > PACK or pieces + lengths[index] < (1 - PADDING) * padded):
            yield pack
            pack, pieces = [], 0
        pack.append(index)
        pieces += lengths[index]
    if pack:
        yield pack


def padded_rows(rows: Sequence[Sequence[int]]) -> Any:
    """Return an int64 array (rows, longest), with zeros after the end of each row."""
    import numpy as np  # noqa: PLC0415

    array = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def softmax(logits: Any) -> Any:
    """Return the probabilities over the last axis."""
    import numpy as np  # noqa: PLC0415

    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def check_finite(*outputs: Any) -> None:
    """Raise ValueError for outputs of a model with NaN or infinity."""
    import numpy as np  # noqa: PLC0415

    if not all(np.isfinite(output).all() for output in outputs):
        raise ValueError("its outputs are not all finite")


def file_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a `tokenizer.json`, without padding and truncation. Raises
    ConfigurationError naming the file."""
    from tokenizers import Tokenizer  # noqa: PLC0415

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigurationError(f"{path} cannot be read: {error}; copy it again") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def open_model(path: Path, threads: int, remedy: str = "copy it again") -> Any:
    """Return the session of a model on ONNX Runtime. Raises ConfigurationError, which names the
    file and the remedy."""
    try:
        return open_onnx(path, threads)
    except Exception as error:  # the library's errors have no common base
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"{path} is not a model that ONNX Runtime can open ({reason}); {remedy}"
        ) from None


def open_onnx(model: Path | bytes, threads: int, *, spinning: bool = False) -> Any:
    """Open a session. With `spinning`, threads wait for the next operator of a pass without
    sleeping, which makes short passes in a row faster. Raises the library's errors."""
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Between passes the threads sleep, because other work needs the cores.
    spin = ("force_spinning_stop", "1") if spinning else ("intra_op.allow_spinning", "0")
    options.add_session_config_entry(f"session.{spin[0]}", spin[1])
    # On x86 processors without VNNI, sums of products overflow unless this is set; others ignore
    # it.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def import_transformers() -> tuple[Any, Any]:
    """Import torch and transformers, without a network, progress bars and warnings. Environment
    variables that are set are kept. Raises ImportError."""
    for variable, value in VARIABLES.items():
        os.environ.setdefault(variable, value)
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return torch, transformers


def open_pretrained(
    automatic: str, location: str | Path, what: str, advice: str, **options: Any
) -> tuple[Any, Any, Any]:
    """Return torch, and the tokenizer and the model at `location`, a folder or a name in the local
    hub cache (HF_HUB_OFFLINE=0 downloads it): float32, on a GPU if there is one.

    `automatic` is the class of transformers that opens the model; `options` are those of opening.
    Raises ConfigurationError, which says `what` cannot be loaded, why, and the advice.
    """
    torch, transformers = import_transformers()
    kind = getattr(transformers, automatic)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(location, **options)
        model = kind.from_pretrained(location, dtype=torch.float32, **options)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"{what} cannot be loaded: {reason}; {advice}") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch, tokenizer, model.to(device).eval()


def open_chosen(
    opened: Callable[[Path], T],
    chosen: Path | str | None,
    shipped: Path,
    setting: str,
    *,
    small: bool,
) -> T | None:
    """Return what a setting has `chosen`: `none`, the `shipped` folder, or another one. None means
    that a language model does the work.

    If nothing is chosen, the shipped folder is used for a `small` model, if it can be opened.
    Raises ConfigurationError, which names the setting and says what is missing.
    """
    if chosen == "none" or (chosen is None and not small):
        return None
    try:
        return opened(shipped if chosen in (None, "shipped") else Path(chosen))
    except ConfigurationError as error:
        if chosen is None:
            return None
        raise ConfigurationError(f"{setting}: {error.detail}") from None


def read_card(kind: type[Card], name: str, folder: Path, files: Sequence[str]) -> Card:
    """Return the card of a folder, the first of its `files`. Raises ConfigurationError, which names
    the file and the remedy, if a file is missing or the card cannot be read."""
    path = folder / files[0]
    if absent := [file for file in files if not (folder / file).is_file()]:
        raise ConfigurationError(
            f"there is no {name} at {folder} ({absent[0]} is missing); copy the whole folder, or "
            f"create one: revelator train {name}"
        )
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path}: {explain(error.errors())}; use a folder of this version, or create one: "
            f"revelator train {name}"
        ) from None
