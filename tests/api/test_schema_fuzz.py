"""Schemathesis on the app's own schema: no bug, no undocumented status, content type or body."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from schemathesis import Case, CheckContext, Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from service.api.app import create_app
from service.core.settings import Settings
from service.retrieval.base import Retriever
from tests.support.asking import ScriptedRetriever
from tests.support.live import answering, config
from tests.support.retrieval import open_scripted
from tests.support.scripted import ScriptedGenerator, ScriptStep

OPERATIONS = 22
CASES = int(os.environ.get("FUZZ_CASES", "500"))  # generated, beside those that the schema names
STATUSES: Counter[int] = Counter()


def not_a_bug(context: CheckContext, response: Response, case: Case) -> None:
    """503 and 504 are documented ends of a question; 500 is none."""
    STATUSES[response.status_code] += 1
    assert response.status_code != 500, response.text


CHECKS = [
    not_a_bug,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
SETTINGS = settings(
    max_examples=-(-CASES // OPERATIONS),
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


script = [*answering(), ScriptStep(reply="Bellini", times=None)]
engines = {"default": ScriptedGenerator(script)}
data = tempfile.TemporaryDirectory(prefix="revelator-fuzz-", ignore_cleanup_errors=True)


def schema(settings: Settings, retriever: Retriever | None = None) -> Any:
    opening = partial(open_scripted, settings, engines=engines, retriever=retriever)
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(settings, opening))


answers = schema(config(), ScriptedRetriever())
stores = schema(config(Path(data.name)))


@answers.exclude(path_regex="^/collections").parametrize()
@seed(3)
@SETTINGS
def test_questions_and_operation_do_as_documented(case: Case) -> None:
    case.call_and_validate(checks=CHECKS)


@stores.include(path_regex="^/collections").parametrize()
@seed(3)
@SETTINGS
def test_collections_do_as_documented(case: Case) -> None:
    case.call_and_validate(checks=CHECKS)
