"""Options of commands that ask questions: the server, and fields of the request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, get_args

from typer import BadParameter, Option

from service.answer.request import AnswerRequest
from service.core.domain import RequestLoop
from service.core.settings.urls import checked


def _checked_url(url: str | None) -> str | None:
    try:
        return checked(url) if url else None
    except ValueError as error:
        raise BadParameter(f"{error}, such as http://127.0.0.1:8000") from None


Url = Annotated[str | None, Option(callback=_checked_url, help="Use the server at this URL.")]


def field_option(name: str) -> Any:
    """Return an option for a field of a request, with the description of the field as help."""
    return Option(help=AnswerRequest.model_fields[name].description)


Collection = Annotated[str | None, field_option("collection")]


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of every command that searches."""

    retriever: Annotated[str, Option(help="Retriever: hybrid, bm25 or dense.")] = "hybrid"
    top_k: Annotated[int | None, field_option("top_k")] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The request fields that were given."""
        known = AnswerRequest.model_fields
        return {n: v for n, v in asdict(self).items() if v is not None and n in known}


@dataclass(frozen=True, kw_only=True)
class AskOptions(SearchOptions):
    """Options of every command that asks questions."""

    max_steps: Annotated[int | None, field_option("max_steps")] = None
    timeout_s: Annotated[float | None, field_option("timeout_s")] = None


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(AskOptions):
    """Options of the commands that ask one question, or one after the other."""

    collection: Collection = None
    route: Annotated[str, Option(help="Route: auto, direct, single, compound or complex.")] = "auto"
    loop: Annotated[
        str,
        Option(
            help="Loop that decides when to search, on every route except direct: "
            f"{', '.join(get_args(RequestLoop))}."
        ),
    ] = "default"
