"""The papers: what their tables fix, and their figures next to our own.

A bundle is everything that a table fixes, for `revelator evaluate --bundle NAME`.

`bundles/NAME.toml` names the method, the fields of its requests (`request`; `datasets` has those
that differ by data set), the settings, and `conditions`, which a bundle alone can ask for. One that
`extends` another has what differs from it. What a bundle cannot set is `model`, `embedding` and
the number of questions: the report compares them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from service.core.domain import Conditions, Model
from service.core.errors import InvalidRequest
from service.core.settings import Settings
from service.evaluation.methods import VARIANT

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


# ---- the published figures, with the differences that limit a comparison

FIGURES: Final = Path(__file__).with_name("published.toml")
SHORT: Final = {"2wikimultihopqa": "2wiki"}  # of data sets, in names of bundles
NOT_COMPARABLE: Final = "not comparable"
COUNTS: Final = {"steps": "steps", "retrievals": "retrievals", "pool": "passages read"}
_ALSO_CALLED: Final = {"nqopen": "nq", "naturalquestions": "nq", "webq": "webquestions"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of a paper's results: the scores from 0 to 1 and the means of `COUNTS`, by measure, of
    a method on a dataset.

    `model` is the model that wrote the answers. `sample` is the number of questions, or 0 if the
    paper does not state it.
    """

    method: str
    called: str
    dataset: str
    scores: Mapping[str, float]
    paper: str
    table: str
    model: str
    corpus: str
    sample: int
    bundle: str | None = None  # that runs it, if there is one


@lru_cache(1)
def figures() -> tuple[Figure, ...]:
    """Return all published figures."""
    content = tomllib.loads(FIGURES.read_text(encoding="utf-8"))
    return tuple(figure for table in content["tables"] for figure in _figures_of(table))


def _figures_of(table: Mapping[str, Any]) -> Iterator[Figure]:
    for method, row in table["figures"].items():
        for dataset, numbers in row.items():
            if dataset in ("called", "bundle", "method"):
                continue
            known = table["datasets"][dataset]
            pairs = zip(known["measures"], numbers, strict=True)
            yield Figure(
                row.get("method", method), row["called"], dataset,
                {name: n if name in COUNTS else n / 100 for name, n in pairs},
                table["paper"], table["table"], table["model"], known["corpus"], known["sample"],
                row.get("bundle", "").replace("*", SHORT.get(dataset, dataset)) or None,
            )  # fmt: skip


def plain(name: str) -> str:
    """Return the letters and digits of a dataset's name in lower case."""
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def is_of(figure: Figure, dataset: str) -> bool:
    """Return whether the figure belongs to the dataset with this name."""
    name = plain(dataset)
    for other, known in _ALSO_CALLED.items():
        if name.startswith(other):
            return figure.dataset == known
    return name == "nq" if figure.dataset == "nq" else figure.dataset in name


def engines_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine of each role, as far as `run.json` contains it."""
    settings = run["common"].get("settings") or {}
    engines, found = settings.get("engines") or {}, {}
    for role, used in (settings.get("roles") or {}).items():
        if used:
            engine = engines.get(used.get("engine")) or {}
            model = used.get("model") or engine.get("model")
            named = model or "the engine's own model"
            found[role] = f"{used.get('engine')} ({engine.get('kind', 'unknown')}): {named}"
    return found


def corpus_of(run: Mapping[str, Any], dataset: str) -> str:
    """Return the collection that was searched for a dataset, and its size, if that is known."""
    collection = (run["datasets"].get(dataset) or {}).get("collection") or {}
    count = collection.get("passages")
    passages = f", {count:,} passages" if isinstance(count, int) else ""
    return f"{collection.get('name', 'unknown')}{passages}"


def differences(
    figure: Figure, run: Mapping[str, Any], dataset: str, method: str, sample: int
) -> list[str]:
    """Return the differences between the paper's setting and ours: the models, the collection, the
    number of questions (`sample`), the variant of the method, and all that the paper's bundle
    fixes. `run` is the content of `run.json`.

    The list is empty only if all properties are known to be the same.
    """
    models, corpus = engines_of(run).values(), corpus_of(run, dataset)
    found = []
    if not models or any(plain(figure.model) not in plain(model) for model in models):
        found.append(f"model ({figure.model})")
    if plain(figure.corpus) != plain(corpus):
        found.append(f"corpus ({figure.corpus})")
    if figure.sample != sample:
        stated = f"{figure.sample:,} questions" if figure.sample else "not stated"
        found.append(f"sample ({stated})")
    if variant := method.partition(VARIANT)[2]:
        found.append(f"variant ({variant})")
    if figure.bundle is None:
        return [*found, "settings (no bundle fixes them)"]
    return [*found, *load_bundle(figure.bundle).differences(run, dataset)]
