"""Typed settings from `revelator.toml`, `REVELATOR_…` variables (`__` for a dot) and flags."""

from __future__ import annotations

from service.core.settings.engines import EngineSettings, RoleSettings
from service.core.settings.loading import Settings, load_settings
from service.core.settings.retrieval import EmbeddingSettings, RerankerSettings, RetrievalSettings
from service.core.settings.server import ServerSettings

__all__ = [
    "EmbeddingSettings",
    "EngineSettings",
    "RerankerSettings",
    "RetrievalSettings",
    "RoleSettings",
    "ServerSettings",
    "Settings",
    "load_settings",
]
