"""`python -m service.api > openapi.yaml` writes the OpenAPI document of the app."""

from __future__ import annotations

import sys

from service.api.app import create_app
from service.core.settings import Settings


def render() -> str:
    """Return the OpenAPI document as YAML."""
    import yaml  # noqa: PLC0415 (a tool of development, not of the service)

    schema = create_app(Settings()).openapi()
    text: str = yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, width=100)
    return "# Made by `python -m service.api > openapi.yaml`; a test compares.\n" + text


if __name__ == "__main__":
    sys.stdout.write(render())
