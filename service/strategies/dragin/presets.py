"""θ, n and L of the paper's models and sets (METHODS.md §3.2, §3.4 #10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.core.settings.loops import PresetName, PresetSource


@dataclass(frozen=True, slots=True)
class Preset:
    """θ of Table 9, of today's configuration files, and of the first commit where it is known."""

    limit: int
    query_words: int
    paper: float
    config: float
    first: float | None = None

    def threshold(self, source: PresetSource) -> float:
        if source == "first" and self.first is not None:
            return self.first
        return self.paper if source == "paper" else self.config


PRESETS: Final[dict[PresetName, Preset]] = {
    "llama-2-13b-chat/2wiki": Preset(64, 25, 0.6, 0.8, 0.9),
    "llama-2-13b-chat/hotpotqa": Preset(100, 35, 1.2, 1.2, 1.4),
    "llama-2-13b-chat/iirc": Preset(128, 25, 1.25, 1.0, 1.25),
    "llama-2-13b-chat/strategyqa": Preset(100, 25, 1.0, 1.3, 1.0),
    "llama-2-7b-chat/2wiki": Preset(64, 25, 1.0, 1.0),
    "llama-2-7b-chat/hotpotqa": Preset(100, 35, 1.3, 0.8),
    "llama-2-7b-chat/iirc": Preset(128, 35, 1.3, 0.6),
    "llama-2-7b-chat/strategyqa": Preset(100, 35, 0.75, 0.75),
    "vicuna-13b-v1.5/2wiki": Preset(64, 25, 1.2, 1.2),
    "vicuna-13b-v1.5/hotpotqa": Preset(100, 35, 1.2, 1.2),
    "vicuna-13b-v1.5/iirc": Preset(128, 35, 1.3, 1.3),
    "vicuna-13b-v1.5/strategyqa": Preset(100, 25, 1.5, 1.5),
}
