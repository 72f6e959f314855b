from __future__ import annotations

import subprocess
import sys

import pytest

from service.core.errors import ConfigurationError
from service.core.settings import EngineSettings
from service.engines.embedded import EmbeddedGenerator
from service.engines.factory import open_generator
from service.engines.local import LocalGenerator
from service.engines.openai import OpenAIGenerator
from service.engines.pool.pool import PoolGenerator
from tests.support.tiny import tiny_settings


def test_each_kind_opens_its_engine() -> None:
    url = "http://127.0.0.1:9/v1"

    assert isinstance(open_generator("mine", tiny_settings()), LocalGenerator)
    with pytest.raises(ConfigurationError, match=r"engines\.mine\.model"):
        open_generator("mine", EngineSettings(kind="local"))
    compiled = EngineSettings(kind="embedded", model="folder")
    assert isinstance(open_generator("compiled", compiled), EmbeddedGenerator)
    one = EngineSettings(kind="openai", urls=[url])
    assert isinstance(open_generator("remote", one), OpenAIGenerator)
    many = EngineSettings(kind="vllm", urls=[url])
    assert isinstance(open_generator("remote", many), PoolGenerator)


def test_a_server_needs_a_url() -> None:
    with pytest.raises(ConfigurationError, match=r"engines\.remote.*urls"):
        open_generator("remote", EngineSettings(kind="openai"))


def test_importing_the_factory_imports_nothing_heavy() -> None:
    code = (
        "import sys, service.engines.base, service.engines.factory, service.engines.local;"
        "print([m for m in ('torch', 'transformers', 'aiohttp', 'llguidance') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
