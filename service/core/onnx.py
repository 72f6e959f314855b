"""Sessions of ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
