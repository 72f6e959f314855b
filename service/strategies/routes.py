"""The routes of a question (METHODS.md §1.2): `single` (one ANRAG cycle),
`compound` (parts in parallel, or a survey of documents) and `complex` (a chain of cycles); and
chats with the model alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from service.answer.events import (
    Decomposition,
    Judgement,
    PassagesFound,
    RetrievedPassage,
    RouteChosen,
    Stop,
    ThoughtWritten,
    Token,
    Withdraw,
)
from service.answer.inquiry import Choice, Inquiry, OpenStep, Scope
from service.answer.request import PlainChat
from service.core.concurrency import gather
from service.core.domain import RouteName
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest, Message
from service.prompts.templates import NO_ANSWER, Pair
from service.strategies.anrag import best_first, search_and_read
from service.strategies.base import Method
from service.strategies.planner import planner_of
from service.strategies.reader import PROSE_TOKENS, write_answer
from service.strategies.reading.questions import Decomposed
from service.strategies.rules import PROSE_JOINT, asks_for_survey
from service.text.grounding import bears, is_yes_no

AFTER: RouteName = "complex"  # the route of a question for which one cycle was not enough
MAX_PARTS: Final = 8
SURVEYED: Final = 40  # passages that a survey looks for
MAX_DOCUMENTS: Final = 10  # that it reads, best first
SURVEY_TOKENS: Final = 400  # of what is written of a document, and of all
BY_DOCUMENT: Final = Choice(False, "read with its document")
BENCHMARK_JOINT: Final = " && "
WORDS: Final = 6  # of an answer that a merge must contain verbatim


async def reply(scope: Scope, chat: PlainChat) -> None:
    """Emit the reply of the Revelator's model to the messages, from `route` to `stop`. At a limit
    of the question it is cut. Raises LimitReached if there is none by then, and EngineFailure.
    """
    await scope.inquiry.emit(RouteChosen(route="direct", loop="none", by="request"))
    request = GenerationRequest(
        messages=tuple(Message(role, text) for role, text in chat.messages),
        max_tokens=chat.max_tokens,
        temperature=chat.temperature,
        seed=chat.seed,
        stop=chat.stop,
        json_schema=chat.form.json_schema if chat.form else None,
        from_client=True,
    )
    async with scope.step("answer", needed=True) as step:
        await step.write("revelator", request, "answer", final=True)
        if step.cut:
            scope.stopped_by = "budget"
    await scope.inquiry.emit(Stop(stopped_by=scope.stopped_by, answered=True, citations=[]))


# ---- single


class Single(Method):
    """One ANRAG cycle (line 3), followed by `complex` if it failed: nothing relevant was found,
    there is no answer, or its probability, where the engine reports it, is too low.

    Escalation is our addition: the question continues as a complex one within the same budget, and
    the answer that was shown is withdrawn. It is restored if the complex route finds none.
    """

    async def run(self) -> str | None:
        escalates = may_escalate(self.inquiry)
        below = self.inquiry.settings.routes.escalate_below
        async with self.step("retrieve") as step:
            step.weighed = escalates and below > 0
            await search_and_read(step)
        sure = step.probability is None or step.probability >= below
        failed = not sure or not {"no_evidence", "declined"}.isdisjoint(step.flags)
        if not (escalates and failed) or self.inquiry.budget.exhausted():
            return step.answer
        if step.answer:
            await step.emit(Withdraw(role="answer", reason="restart"))
        async with self.step("route") as route:
            route.flag("escalated")
            await route.emit(RouteChosen(route=AFTER, loop="anrag", by="escalation"))
        self.scope.stopped_by = "answer"
        answer = await Complex(self.scope, self.question, failed=True).run()
        if step.answer and not answer:
            await step.emit(Token(role="answer", text=step.answer))
        return answer or step.answer


def may_escalate(inquiry: Inquiry) -> bool:
    """Whether settings and request allow another route and another step, which must not repeat the
    same search.
    """
    settings, request = inquiry.settings, inquiry.request
    wanted = {"never": (), "auto": ("auto",), "always": ("auto", "single")}
    return (
        request.route in wanted[settings.routes.escalate]
        and AFTER in settings.routes.allowed
        and "refine" not in request.conditions.skip
        and (request.max_steps or Complex.default_steps) > 1
    )


# ---- complex


class Complex(Method):
    """Refine, ANRAG, ending, until done (lines 5 and following).

    `failed`: another route has already searched this question without an acceptable answer; that
    search counts and is not repeated, and the model is not asked whether one is needed.
    """

    default_steps = 5

    def __init__(self, scope: Scope, question: str, *, failed: bool = False) -> None:
        super().__init__(scope, question)
        self.skipped = self.request.conditions.skip
        self.planner = planner_of(self.inquiry.roles.revelator)
        self.pairs: list[Pair] = []
        self.failed = [Pair(question, None)] if failed else []
        self.ended = False
        self.ahead: str | None = None  # the next question, if it is known
        self.unread = False

    @property
    def _asked(self) -> int:
        return len(self.pairs) + len(self.failed)

    async def run(self) -> str | None:
        with self.scope.limited():
            if "ending" not in self.skipped and not self.failed:
                # ENDING or NEXT on an empty history, once before any retrieval
                async with self.step("ending") as step:
                    await self._look_ahead(step)
            scope = self.scope
            while (
                not self.ended
                and scope.stopped_by == "answer"
                and scope.may_go_on(self._asked, self.max_steps)
            ):
                await self._cycle()
        return await self._finish()

    async def _cycle(self) -> None:
        """Run one step: REFINE unless NEXT was asked, ANRAG on the seed question, ENDING or NEXT.

        Without evidence the question is refined once more (METHODS.md §6 #8), as a separate step.
        """
        step = self.scope.step("retrieve", final=False)
        with self.scope.limited():
            step.question = await self._next_seed(step)
        async with step:
            if step.question:
                await self._retrieve(step)

    async def _next_seed(self, step: OpenStep) -> str:
        """Return the seed question of this step; none if the refiner repeats itself
        (`refine_loop`)."""
        if "refine" in self.skipped:
            return self.question
        seed, self.ahead = self.ahead, None
        if seed is None:
            seed = await self.planner.next_question(step, self.question, self.pairs, self.failed)
        if seed is None:
            step.flag("refine_loop")
            self.ended = True
        return seed or ""

    async def _retrieve(self, step: OpenStep) -> None:
        await search_and_read(step)
        self.unread = step.left_unread
        if step.answer or step.stopped_by == "answer":
            self.pairs.append(Pair(step.question, step.answer))
        if step.stopped_by != "answer":
            return
        if step.answer is None and "refine" not in self.skipped:
            return
        if "ending" not in self.skipped:
            await self._look_ahead(step)

    async def _look_ahead(self, step: OpenStep) -> None:
        ahead = await self.planner.ahead(step, self.question, self.pairs, self.failed)
        self.ended, self.ahead = ahead
        await step.emit(Judgement(ending=self.ended))

    async def _finish(self) -> str | None:
        """Run GEN_FINAL over the pairs. Nothing is written if the retrievals found nothing, or if
        the newest evidence could not be read any more, since the passages are then worth more than
        the pairs.
        """
        found = any(pair.answer for pair in self.pairs)
        limited = self.scope.stopped_by in ("deadline", "budget")
        if self.unread or (not found and (self._asked or limited)):
            return None
        async with self.step("answer") as step:
            if not self._asked:
                step.flag("closed_book")
            await self._conclude(step)
        return step.answer

    async def _conclude(self, step: OpenStep) -> None:
        """Run GEN_FINAL. What a small reader would guess is computed where possible."""
        known = planner_of(self.reader).conclude(self.question, self.pairs)
        if known:
            step.flag("computed")
            return await step.say(known)
        memory = self.inquiry.settings.answers.invites_memory
        prompt = self.templates.fill("final", self.question, pairs=self.pairs, memory=memory)
        return await write_answer(step, prompt, PROSE_TOKENS)


# ---- compound


class Compound(Method):
    """Decompose, answer the parts in parallel by the `loop`, merge (line 4)."""

    merge_template = "merge"
    merged_tokens = PROSE_TOKENS

    def __init__(self, scope: Scope, question: str, loop: type[Method]) -> None:
        super().__init__(scope, question)
        self.loop = loop

    async def run(self) -> str | None:
        async with self.step("decompose") as step:
            try:
                planner = planner_of(self.inquiry.roles.revelator)
                parts = await planner.split(step, self.question, MAX_PARTS)
            except LimitReached:
                parts = Decomposed(None, (self.question,))
            if parts.thought:
                await step.emit(ThoughtWritten(text=parts.thought))
            await step.emit(Decomposition(questions=list(parts.questions)))
        if len(parts.questions) == 1:
            return await self.loop(self.scope, self.question).run()
        scopes = self.scope.parts(len(parts.questions))
        parts_asked = zip(scopes, parts.questions, strict=True)
        pairs = await gather([partial(self._part, *part) for part in parts_asked])
        return await self._conclude(scopes, pairs)

    async def _conclude(self, scopes: Sequence[Scope], pairs: Sequence[Pair]) -> str | None:
        """Merge what the parts found."""
        for scope in scopes:
            if scope.stopped_by != "answer":
                self.scope.stopped_by = scope.stopped_by
        if not any(pair.answer for pair in pairs):
            return None
        async with self.step("merge") as step:
            sound = [pair for pair, scope in zip(pairs, scopes, strict=True) if scope.supported]
            await self._merge(step, pairs, sound)
        return step.answer

    async def _part(self, scope: Scope, question: str) -> Pair:
        """Answer one part. A part that meets a limit ends without an answer."""
        answer = None
        with scope.limited():
            answer = await self.loop(scope, question).run()
        return Pair(question, answer)

    async def _merge(self, step: OpenStep, pairs: Sequence[Pair], sound: Sequence[Pair]) -> None:
        """Run GEN_MERGE, in prose or with ` && ` between the parts as compound benchmarks score
        them (METHODS.md §6 #7). A merge that loses the answer of a part that is `sound`, that is
        supported, is replaced by the answers themselves.
        """
        templates = self.templates
        benchmark = self.request.conditions.merge_style == "benchmark"
        told = planner_of(self.reader).merge(pairs)
        if told or (benchmark and not templates.has("merge_benchmark")):
            whole = join_parts(pairs, BENCHMARK_JOINT) if benchmark else told or ""
            return await step.say(whole)
        role = "merge_benchmark" if benchmark else self.merge_template
        prompt = templates.fill(role, self.question, pairs=pairs)
        await write_answer(step, prompt, self.merged_tokens)
        merged = step.answer
        if has_all_parts(merged, pairs) if benchmark else not loses_part(merged, sound):
            return None
        if merged:
            await step.emit(Withdraw(role="answer", reason="repair"))
        step.flag("repaired")
        whole = join_parts(pairs, BENCHMARK_JOINT if benchmark else PROSE_JOINT)
        return await step.say(whole)


class Survey(Compound):
    """Search widely, let the reader say what each document has about the question, merge. Documents
    that have nothing are left out."""

    default_top_k = SURVEYED
    merge_template = "survey_merge"
    merged_tokens = SURVEY_TOKENS

    async def run(self) -> str | None:
        documents: dict[str, list[RetrievedPassage]] = {}
        async with self.step("retrieve") as step:
            result = await step.search(self.question, self.top_k)
            await step.show_passages(result, [BY_DOCUMENT] * len(result.passages))
            for hit in result.passages:
                # the sections or rows of a file count as one document
                name = hit.passage.passage_id.partition("#")[0] or hit.passage.passage_id
                documents.setdefault(name, []).append(RetrievedPassage.of(hit, True))
            if not documents:
                step.flag("no_evidence")
            if len(documents) > MAX_DOCUMENTS:
                step.flag("shortened")
        read = list(documents.items())[:MAX_DOCUMENTS]
        asked = [f"{self.question} ({_name(*document)})" for document in read]
        scopes = self.scope.parts(len(read))
        work = zip(scopes, asked, [passages for _, passages in read], strict=True)
        pairs = await gather([partial(self._read, *arguments) for arguments in work])
        return await self._conclude(scopes, pairs)

    async def _read(self, scope: Scope, asked: str, passages: Sequence[RetrievedPassage]) -> Pair:
        """Answer from one document, as far as the limits of the question allow."""
        async with scope.step("retrieve", asked, alone=True) as step:
            shown = best_first(passages, self.able)
            if len(shown) < len(passages):
                step.flag("shortened")
            await step.emit(PassagesFound(passages=shown))
            prompt = self.templates.fill("survey", self.question, passages=shown)
            await write_answer(step, prompt, SURVEY_TOKENS)
        return Pair(asked, step.answer)

    async def _merge(self, step: OpenStep, pairs: Sequence[Pair], sound: Sequence[Pair]) -> None:
        told = [pair for pair in pairs if pair.answer]
        if len(told) > 1:
            return await super()._merge(step, told, sound)
        return await step.say(told[0].answer or "")


def wants_survey(inquiry: Inquiry) -> bool:
    """Whether a question is for a survey: by the rule, unless the request names another handling,
    or an encoder reads, which copies single answers."""
    request = inquiry.request
    open_to_it = request.route == "auto" and request.loop == "default"
    able = inquiry.roles.extractor is None and "compound" in inquiry.settings.routes.allowed
    return open_to_it and able and asks_for_survey(inquiry.question)


def _name(document: str, passages: Sequence[RetrievedPassage]) -> str:
    """Return the title of a document without the headings below it."""
    return passages[0].title.partition(" › ")[0] or document


def join_parts(pairs: Sequence[Pair], joint: str) -> str:
    """Join the parts' answers in order. A part without an answer says so."""
    return joint.join(pair.answer or NO_ANSWER for pair in pairs)


def loses_part(merged: str | None, pairs: Sequence[Pair]) -> bool:
    """Return whether a merged answer in prose contains the answer of one part and not that of
    another.

    Long answers, yes and no may be expressed in other words. A merged answer that contains no
    part's answer counts as a conclusion from them.
    """
    telling = [
        pair.answer
        for pair in pairs
        if pair.answer and len(pair.answer.split()) <= WORDS and not is_yes_no(pair.answer)
    ]
    contained = [bears(merged or "", answer) for answer in telling]
    return any(contained) and not all(contained)


def has_all_parts(merged: str | None, pairs: Sequence[Pair]) -> bool:
    """Whether a merged answer has something for every part, in one line."""
    parts = (merged or "").split(BENCHMARK_JOINT.strip())
    return len(parts) == len(pairs) and all(map(str.strip, parts)) and "\n" not in (merged or "")
