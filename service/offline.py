"""What must be set before torch and transformers are first imported."""

from __future__ import annotations

import os

# By default OpenMP threads spin while they wait; on cores that others use too, that made a forward
# pass five to fifteen times as long.
_VARIABLES = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def prepare_torch() -> None:
    """Keep model libraries off the network and their threads polite; set variables stay."""
    for variable, value in _VARIABLES.items():
        os.environ.setdefault(variable, value)
