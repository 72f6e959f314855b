"""Bundles: everything that a paper's table fixes, for `revelator evaluate --bundle NAME`.

`bundles/NAME.toml` names the method, the fields of its requests (`request`; `datasets` has those
that differ by data set), the settings, and `conditions`, which a bundle alone can ask for. One that
`extends` another has what differs from it. What a bundle cannot set is `model`, `embedding` and
the number of questions: the report compares them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from service.core.domain import Conditions, Model
from service.core.errors import InvalidRequest
from service.core.settings import Settings

NO_ENCODER: Final = "none"
FOLDER: Final = Path(__file__).with_name("bundles")


class Bundle(Model):
    """A file. `model` writes the answers; `embedding` is that of the collection, if the retriever
    is dense."""

    name: str
    paper: str
    method: str
    model: str
    embedding: str | None = None
    request: dict[str, Any]
    datasets: dict[str, dict[str, Any]] = {}
    conditions: Conditions = Conditions()
    settings: dict[str, dict[str, Any]]

    def fields(self, dataset: str) -> dict[str, Any]:
        """Return the request fields on the data set with this name."""
        matching = (
            fields for known, fields in self.datasets.items() if known in dataset.casefold()
        )
        return {**self.request, **next(matching, {})}

    def applied(self, settings: Settings) -> Settings:
        """Return the settings with those of the bundle, in which a language model reads."""
        reader = settings.role("reader").model_copy(update={"encoder": NO_ENCODER})
        changed: dict[str, Any] = {"roles": {**settings.roles, "reader": reader}}
        for name, values in self.settings.items():
            section = getattr(settings, name)
            changed[name] = type(section).model_validate({**dict(section), **values})
        return settings.model_copy(update=changed)

    def differences(self, run: Mapping[str, Any], dataset: str) -> Iterator[str]:
        """Yield what an evaluation, described by `run.json`, did otherwise, with the bundle's
        value."""
        common = run["common"]
        if "settings" not in common:
            yield "settings of the server (not known)"
            return
        if common["settings"]["roles"]["reader"].get("encoder") != NO_ENCODER:
            yield f"roles.reader.encoder ({NO_ENCODER})"
        for section, values in self.settings.items():
            ours = common["settings"].get(section) or {}
            yield from (f"{section}.{key}" for key in _unlike(values, ours))
        asked = (run["datasets"].get(dataset) or {}).get("request") or common.get("request", {})
        yield from _unlike(self.fields(dataset), asked)
        conditions = Conditions.model_validate(common.get("conditions", {}))
        yield from _unlike(dict(self.conditions), dict(conditions))
        collection = (run["datasets"].get(dataset) or {}).get("collection") or {}
        if self.embedding and self.embedding not in str(collection.get("embedding_model")):
            yield f"embedding ({self.embedding})"


def _unlike(wanted: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        if ours.get(name) != value:
            yield f"{name} ({value})"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@lru_cache
def load_bundle(name: str) -> Bundle:
    """Return a bundle. Raises InvalidRequest with the known names."""
    if name not in names():
        raise InvalidRequest(f"bundle {name!r} is unknown; the bundles are {', '.join(names())}")
    return Bundle(name=name, **_content(name))


def _content(name: str) -> dict[str, Any]:
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return _merged(_content(base), content) if (base := content.pop("extends", None)) else content


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {name: _merged(base[name], more[name]) for name in base.keys() & more.keys()
            if isinstance(base[name], dict)}  # fmt: skip
    return {**base, **more, **both}
