"""One prompt call: who is asked, what the reply is held to, and how it is read. Its reply may be
requested once more, at a higher temperature.

Decoding is constrained if the engine supports it; the reply is read as free text in either case
(METHODS.md §6 #4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from service.answer.calls import chat
from service.answer.inquiry import OpenStep
from service.core.domain import RoleName
from service.prompts.templates import Prompt

T = TypeVar("T")
RETRY_TEMPERATURE: Final = 0.7
LABEL_TOKENS: Final = 8  # tokens, if the engine constrains the model to the labels
FREE_LABEL_TOKENS: Final = 64  # otherwise there is a preface, or a sentence around the label


class Reply(NamedTuple, Generic[T]):
    """What was read in a reply, or None; whether it is an `example` of its prompt, and whether it
    was `cut`."""

    value: T | None
    text: str
    example: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class PromptCall(Generic[T]):
    """The row of a role. `texts`: what of a reply must not be an example of the prompt."""

    role: RoleName
    read: Callable[[str], T | None]
    max_tokens: int = FREE_LABEL_TOKENS
    labels: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()
    texts: Callable[[T], Iterable[str]] = lambda _: ()

    async def ask(self, step: OpenStep, prompt: Prompt, temperature: float = 0.0) -> Reply[T]:
        """Make the call in an open step. Raises the errors of `OpenStep.ask`."""
        held = step.inquiry.roles[self.role].generator.capabilities.choices
        request = chat(
            prompt,
            max_tokens=LABEL_TOKENS if self.labels and held else self.max_tokens,
            temperature=temperature,
            choices=self.labels,
            json_schema=self.schema,
            stop=self.stop,
        )
        completion = await step.ask(self.role, request)
        value = self.read(completion.text)
        example = value is not None and any(map(prompt.gives, self.texts(value)))
        return Reply(value, completion.text, example, completion.finish == "length")
