"""A double of an engine that writes raw completions token by token, with their probabilities."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple

from service.engines.base import (
    Capabilities,
    Delta,
    FinishReason,
    GenerationRequest,
    Generator,
    TokenUsage,
)

Tokens = Sequence[tuple[str, float]]


class Output(NamedTuple):
    """What a model would write if nothing cut it, and how it would end."""

    tokens: Tokens
    finish: FinishReason = "stop"

    def cut(self, most: int) -> Output:
        return self if len(self.tokens) <= most else Output(self.tokens[:most], "length")


def of_words(text: str, doubts: dict[str, float] | None = None, sure: float = 0.99) -> Output:
    """A token for each word, the space before it inside; `doubts` are probabilities of words."""
    tokens = [(f" {word}", (doubts or {}).get(word, sure)) for word in text.split()]
    return Output(tokens)


class TokenEngine(Generator):
    """Answers raw prompts by `write`, chats by `chat`, and keeps the requests."""

    name = "tokens"
    capabilities = Capabilities()

    def __init__(
        self,
        write: Callable[[GenerationRequest], Output],
        chat: Callable[[str], str] | None = None,
        *,
        logprobs: bool = True,
        context_tokens: int | None = None,
    ) -> None:
        self.capabilities = Capabilities(logprobs=logprobs, context_tokens=context_tokens)
        self.requests: list[GenerationRequest] = []
        self.aborted = 0
        self._write = write
        self._chat = chat

    @property
    def prompts(self) -> list[str]:
        return [request.prompt for request in self.requests if request.prompt is not None]

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        if request.prompt is None:
            assert self._chat is not None, f"unexpected chat: {request.messages}"
            output = Output([(self._chat(request.messages[-1].content), 1.0)])
        else:
            output = self._write(request).cut(request.max_tokens)
        try:
            for text, probability in output.tokens:
                known = request.logprobs and self.capabilities.logprobs
                yield Delta(text, math.log(probability) if known else None)
        except GeneratorExit:
            self.aborted += 1
            raise
        yield Delta("", finish=output.finish, usage=TokenUsage(7, len(output.tokens)))

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        return
