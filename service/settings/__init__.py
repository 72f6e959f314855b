"""Typed settings from `revelator.toml`, `REVELATOR_…` variables (`__` for a dot) and flags."""

from __future__ import annotations

from service.settings.engines import EngineSettings, PoolSettings, RoleSettings, RolesSettings
from service.settings.loading import Settings, load_settings
from service.settings.loops import (
    AutoragSettings,
    DraginSettings,
    EfficientragSettings,
    HanragSettings,
    RoutesSettings,
)
from service.settings.retrieval import EmbeddingSettings, RerankerSettings, RetrievalSettings
from service.settings.routing import EscalationSettings, RouterSettings
from service.settings.server import AnswerSettings, LimitSettings, ServerSettings

__all__ = [
    "AnswerSettings",
    "AutoragSettings",
    "DraginSettings",
    "EfficientragSettings",
    "EmbeddingSettings",
    "EngineSettings",
    "EscalationSettings",
    "HanragSettings",
    "LimitSettings",
    "PoolSettings",
    "RerankerSettings",
    "RetrievalSettings",
    "RoleSettings",
    "RolesSettings",
    "RouterSettings",
    "RoutesSettings",
    "ServerSettings",
    "Settings",
    "load_settings",
]
