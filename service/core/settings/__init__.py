"""Typed settings from `revelator.toml`, `REVELATOR_…` variables (`__` for a dot) and flags."""

from __future__ import annotations

from service.core.settings.engines import (
    EngineSettings,
    RoleSettings,
)
from service.core.settings.loading import Settings, load_settings
from service.core.settings.loops import (
    AutoragSettings,
    BaselinesSettings,
    DraginSettings,
    EfficientragSettings,
    HanragSettings,
    RoutesSettings,
)
from service.core.settings.retrieval import EmbeddingSettings, RerankerSettings, RetrievalSettings
from service.core.settings.server import (
    AnswerSettings,
    LimitSettings,
    ServerSettings,
    TracingSettings,
)

__all__ = [
    "AnswerSettings",
    "AutoragSettings",
    "BaselinesSettings",
    "DraginSettings",
    "EfficientragSettings",
    "EmbeddingSettings",
    "EngineSettings",
    "HanragSettings",
    "LimitSettings",
    "RerankerSettings",
    "RetrievalSettings",
    "RoleSettings",
    "RoutesSettings",
    "ServerSettings",
    "Settings",
    "TracingSettings",
    "load_settings",
]
