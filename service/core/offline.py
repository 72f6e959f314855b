"""Environment variables that must be set before torch and transformers are first imported."""

from __future__ import annotations

import os
from typing import Any

# By default OpenMP threads spin while they wait; on cores that others use too, that made a forward
# pass five to fifteen times as long.
_VARIABLES = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def import_transformers() -> tuple[Any, Any]:
    """Import torch and transformers, without a network, progress bars and warnings. Environment
    variables that are set are kept. Raises ImportError."""
    for variable, value in _VARIABLES.items():
        os.environ.setdefault(variable, value)
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return torch, transformers
