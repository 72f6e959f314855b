"""docker-compose.yml as compose would read it: variables put in, anchors resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.deploy.helm import ROOT

VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<kind>:[-+?])(?P<word>[^}]*))?\}")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Raises KeyError, with the message, for a variable that must be set."""

    def value(found: re.Match[str]) -> str:
        given = variables.get(found["name"], "")
        match found["kind"]:
            case ":-":
                return given or found["word"]
            case ":+":
                return found["word"] if given else ""
            case ":?" if not given:
                raise KeyError(found["word"])
        return given

    return VARIABLE.sub(value, text)


def services(**variables: str) -> Mapping[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = _filled(yaml.safe_load(text)["services"], variables)
    return found


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, variables) for each in value]
    return interpolated(value, variables) if isinstance(value, str) else value
