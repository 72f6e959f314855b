"""What all methods share: one object answers one question with retrievals of its own choice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import ClassVar

from service.answer.calls import Roles
from service.answer.inquiry import Choice, OpenStep, Scope
from service.core.domain import LoopName, Passage, StepKind
from service.core.settings import Settings
from service.prompts.templates import TemplateSet


class Method:
    """A method at work on one question, in steps of `scope`, which emit its events.

    `open_step` is the step that `open` started last; one without an id was never shown. `seen` are
    the passages that its model was shown.

    What is known of a loop is declared here. `raw`: it continues a raw text, without the turns of a
    chat. `weighs`: it needs the probabilities of tokens. `needs`: the templates without which it
    cannot run. `sampled`: its answer may be decided by a vote. `answering`: its retrievals answer a
    question each; in other loops such a step has the model's reasoning. `from_memory`: what it
    answers without a search is from memory, as it should be. `default_steps` and `default_top_k`:
    `max_steps` and `top_k`, where the request has none.
    """

    name: ClassVar[LoopName]
    raw: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    needs: ClassVar[Sequence[str]] = ()
    sampled: ClassVar[bool] = False
    answering: ClassVar[bool] = False
    from_memory: ClassVar[bool] = False
    default_steps: ClassVar[int] = 1
    default_top_k: ClassVar[int] = 3

    def __init__(self, scope: Scope, question: str) -> None:
        self.scope, self.question = scope, question
        self.inquiry = scope.inquiry
        self.request, self.reader = self.inquiry.request, self.inquiry.roles.reader
        self.templates, self.able = self.reader.templates, self.reader.generator.capabilities
        self.max_steps = self.request.max_steps or self.default_steps
        self.top_k = self.request.top_k or self.default_top_k
        self.seen: dict[str, Passage] = {}
        self.open_step = OpenStep(scope, "", "route")
        self._opened = AsyncExitStack()

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the method and how to obtain it, or None."""
        engine = roles.reader.generator
        if cls.weighs and not engine.capabilities.logprobs:
            return (
                f"the engine {engine.name!r} of roles.reader does not report the probabilities of "
                "its tokens; use an engine that does, such as one of kind embedded, local or vllm"
            )
        lacking = lacking_template(roles.reader.templates, cls.needs)
        if lacking is None and cls.raw and not engine.capabilities.raw:
            return (
                f"the server of the engine {engine.name!r} has no /v1/completions, which the loop "
                "needs; use another loop, or a server that has it, such as vLLM or llama.cpp"
            )
        return lacking

    async def run(self) -> str | None:
        """Answer the question; when time or budget runs out, from what was found. Return the
        answer; what stopped it is `scope.stopped_by`. Raises LimitReached, EngineFailure and
        RetrievalFailure."""
        raise NotImplementedError

    def step(self, kind: StepKind) -> OpenStep:
        """Return a step about the question."""
        return self.scope.step(kind, self.question)

    async def open(self, kind: StepKind, question: str = "") -> OpenStep:
        """Open a step that lasts until the next one: for methods that learn only then whether it
        was the last."""
        await self.close()
        step = self.scope.step(kind, question or self.question)
        self.open_step = await self._opened.enter_async_context(step)
        return step

    async def close(self) -> None:
        """End the open step, if there is one."""
        await self._opened.aclose()

    async def find(
        self, step: OpenStep, query: str, top_k: int, exclude: frozenset[str] = frozenset()
    ) -> list[Passage]:
        """Search in an open step, and show the model all that is found, which nothing judges.
        Raises as `OpenStep.search`."""
        result = await step.search(query, top_k, exclude)
        found = {hit.passage.passage_id: hit.passage for hit in result.passages}
        await step.show_passages(result, [Choice(True)] * len(result.passages))
        if not found.keys() - self.seen:
            step.flag("no_new_evidence" if self.seen else "no_evidence")
        self.seen |= found
        return [hit.passage for hit in result.passages]


def lacking_template(templates: TemplateSet, roles: Sequence[str]) -> str | None:
    """Return the file that a folder of templates lacks, or None."""
    absent = [role for role in roles if not templates.has(role)]
    return f"the templates in {templates.folder} have no {absent[0]}.txt" if absent else None
