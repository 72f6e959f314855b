"""A question and how to answer it: the only declaration of these fields.

Values of the wrong type are never converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from service.core.domain import Conditions, RequestLoop, RequestRoute, RetrieverName
from service.core.validation import Strict, parse
from service.retrieval.base import NOBODY, Principals

LONGEST_QUESTION: Final = 4_000  # characters
LONGEST_TIMEOUT_S: Final = 300
MAX_STEPS: Final = 20
MAX_TOP_K: Final = 100
MAX_SAMPLES: Final = 40
MOST_TURNS: Final = 1_000
LONGEST_HISTORY: Final = 100_000  # characters of all turns together

FilterScalar = str | int | Annotated[float, Field(allow_inf_nan=False)] | bool
FilterInput = FilterScalar | Annotated[list[FilterScalar], Field(min_length=1)]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("the question is blank")
    return text


def _alternatives(value: object) -> tuple[object, ...]:
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("the list is empty")
        return tuple(value)
    return (value,)


Question = Annotated[
    str, Field(min_length=1, max_length=LONGEST_QUESTION), AfterValidator(_not_blank)
]
FilterValues = Annotated[
    tuple[FilterScalar, ...],
    BeforeValidator(_alternatives, json_schema_input_type=FilterInput),
]


def _with_both_names(schema: dict[str, Any]) -> None:
    schema["properties"]["content"] = {"type": "string", "description": "OpenAI's name of `text`."}
    schema["required"] = ["role"]


class Turn(BaseModel):
    """An earlier message of the conversation that a question belongs to, with its `text` or, as in
    OpenAI's messages, `content`."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, json_schema_extra=_with_both_names
    )

    role: Literal["user", "assistant"]
    text: str = Field(validation_alias=AliasChoices("text", "content"))


def latest_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return the last turns, as many as a request may have."""
    kept = turns[-MOST_TURNS:]
    sizes = accumulate(len(turn.text) for turn in reversed(kept))
    many = sum(1 for _ in takewhile(lambda size: size <= LONGEST_HISTORY, sizes))
    return list(kept[len(kept) - many :])


def _short_enough(turns: list[Turn]) -> list[Turn]:
    if sum(len(turn.text) for turn in turns) > LONGEST_HISTORY:
        raise ValueError(
            f"the messages have more than {LONGEST_HISTORY:,} characters together; send the last "
            "ones only"
        )
    return turns


class SearchFields(Strict):
    """Where and how it is searched."""

    retriever: RetrieverName = "hybrid"
    collection: str | None = Field(
        None,
        max_length=200,
        description="Collection to search. Default: `default` if it exists, else `sample`.",
    )
    filter: dict[str, FilterValues] | None = Field(
        None,
        description="Filter by metadata: for each field, a value or a list of values, one of which "
        "must match. All fields must match.",
    )


class AnswerOptions(SearchFields):
    """How a question is answered, apart from the loop."""

    route: RequestRoute = "auto"
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_TOP_K,
        description="Number of passages per retrieval that are shown to the reader. Default: "
        "depends on the loop and the model.",
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_STEPS,
        description="Maximum number of steps of the loop: search cycles, retrievals or follow-up "
        "questions. Default: depends on the loop.",
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=MAX_SAMPLES,
        description="Number of answers that the reader writes, of which the most frequent one "
        "is returned (self-consistency). For the loops that write their answer in one call, as the "
        "default does; for another one, the error names them. Default: 1.",
    )
    last_resort: bool | None = Field(
        None,
        description="Whether the question itself is searched once where the loop has no answer and "
        "kept no passage. Default: `answers.last_resort` of the settings.",
    )
    timeout_s: float | None = Field(
        None,
        gt=0,
        le=LONGEST_TIMEOUT_S,
        allow_inf_nan=False,
        description="Time limit in seconds. Default: `limits.timeout_s` of the settings.",
    )


class AnswerRequest(AnswerOptions):
    """A question and how to answer it. Only `question` is required."""

    question: Question
    history: Annotated[list[Turn], AfterValidator(_short_enough)] = Field(
        [],
        max_length=MOST_TURNS,
        description="Earlier messages of the conversation, the oldest first. A question that "
        "cannot be understood without them is rewritten by the model as one that can; the step "
        f"`condense` shows it. At most {LONGEST_HISTORY:,} characters together.",
    )
    loop: RequestLoop = "default"


class OutputForm(BaseModel):
    """The JSON that the answer is to become. `free`: any object, by `instructions`."""

    model_config = ConfigDict(frozen=True)

    json_schema: dict[str, Any]
    free: bool = False
    instructions: str = ""


class ChatQuestion(AnswerRequest):
    """A question of a conversation, whose last message may be longer than a question: then the
    model condenses it. With a `form`, the answer becomes JSON."""

    form: OutputForm | None = None

    question: Annotated[
        str, Field(min_length=1, max_length=LONGEST_HISTORY), AfterValidator(_not_blank)
    ]


class PlainChat(BaseModel):
    """Messages that go to the model as they are, and how it decodes its reply."""

    model_config = ConfigDict(frozen=True)

    messages: tuple[tuple[Literal["system", "user", "assistant"], str], ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    form: OutputForm | None = None


class PreparedRequest(ChatQuestion):
    """A request that this deployment can answer; the collection and the time limit are resolved,
    and `principals` are those of the sender. With `plain`, nothing but the model is asked, and the
    question is only the last message."""

    collection: str
    timeout_s: float
    principals: Principals = NOBODY
    plain: PlainChat | None = None
    conditions: Conditions = Conditions()


def parse_request(fields: object) -> AnswerRequest:
    """Parse a request. Raises InvalidRequest, which names each wrong field but no values."""
    return parse(AnswerRequest, fields)
