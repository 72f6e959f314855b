"""The loop `autorag` (METHODS.md §2.2): `Plan` decides, this makes the calls, `Record` shows them.

Each retrieval is a step `retrieve`: `thought` and `query` of the turn that asked for it (and that
turn's call), `passages`, all kept since nobody judges; its `answer` is the reasoning of the turn
that read them, whose text streams as drafts meanwhile. A document out of the model's own knowledge
is a step `retrieve` as well, flagged `closed_book`, with the query it was written for as its
question and no `query`, so that it is no retrieval. The answer is a step `answer`. The first turn
is shown once it is known which step it opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from service.answer.calls import Role
from service.answer.events import BaseEvent, Stop, Token, TokenRole, Withdraw
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.concurrency import closing
from service.core.domain import AutoragMode, LoopName, Passage, StoppedBy
from service.core.errors import LimitReached
from service.core.settings import AutoragSettings
from service.engines.base import GenerationRequest
from service.prompts.templates import Prompt
from service.strategies.autorag.decisions import (
    Action,
    Conclude,
    GiveUp,
    Imagine,
    Plan,
    Remind,
    Search,
)
from service.strategies.autorag.dialogue import (
    FEW_SHOT_STOPS,
    Dialogue,
    document_text,
    evidence_request,
    knowledge_request,
    naive_request,
    opening,
    reminder,
    titled_text,
)
from service.strategies.autorag.record import Record
from service.strategies.autorag.turns import ANYWHERE, AT_LINES, Piece, TurnStream, read_turn
from service.strategies.revelator.parsing import ends_with, read_answer

EVIDENCE: Final = 6  # passages, as three searches bring


def autorag_mode(settings: AutoragSettings, reader: Role) -> AutoragMode:
    """The mode that is set, else the one that the reader's model was trained on."""
    return settings.mode or reader.generator.capabilities.autorag or "few_shot"


class Autorag:
    """Model and retriever talk, then the model with itself; at the end it answers directly."""

    name: LoopName = "autorag"

    async def run(
        self, scope: Scope, question: str, as_role: TokenRole
    ) -> AsyncIterator[BaseEvent]:
        """T is the request's `max_steps` where it names one, T^PK is at most T."""
        inquiry = scope.inquiry
        settings = inquiry.settings.autorag
        most = inquiry.request.max_steps or settings.limits.max_retrievals
        parametric = min(settings.limits.max_parametric, most) if settings.parametric else 0
        mode = autorag_mode(settings, inquiry.roles.reader)
        messages = opening(inquiry.roles.reader.templates, mode, question.strip())
        tuned = mode == "tuned"
        form = ANYWHERE if tuned else AT_LINES
        conversation = _Conversation(
            inquiry=inquiry,
            plan=Plan(
                question.strip(),
                most,
                parametric,
                form,
                reminds=not tuned,
                examples="" if tuned else messages[0].content,
            ),
            tuned=tuned,
            dialogue=Dialogue(messages),
            record=Record(scope, question, as_role),
            final=as_role == "answer",
        )
        async with closing(conversation.events()) as events:
            async for event in events:
                yield event


@dataclass(slots=True)
class _Conversation:
    """`final`: the last call may use the time reserve (a compound part leaves it to the merge).
    `thought`: the newest turn's reasoning; `finding`: the newest on passages; `unread`: documents
    came after it; `wrong`: the newest turn, which was not in the form."""

    inquiry: Inquiry
    plan: Plan
    tuned: bool
    dialogue: Dialogue
    record: Record
    final: bool
    stopped_by: StoppedBy = "answer"
    action: Action | None = None
    ended: bool = False
    seen: dict[str, Passage] = field(default_factory=dict)
    thought: str | None = None
    finding: str | None = None
    unread: bool = False
    wrong: str | None = None

    async def events(self) -> AsyncIterator[BaseEvent]:
        try:
            while self._may_go_on():
                async with closing(self._cycle()) as events:
                    async for event in events:
                        yield event
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by
        if not self.ended:
            async with closing(self._last_words()) as events:
                async for event in events:
                    yield event
        if read_answer(self.record.answer, self.plan.question).declined:
            for event in self.record.decline():
                yield event
        answered = self.record.conclude()
        for event in self.record.close():
            yield event
        yield Stop(stopped_by=self.stopped_by, answered=answered)

    def _may_go_on(self) -> bool:
        if self.ended or isinstance(self.action, GiveUp):
            return False
        if why := self.inquiry.budget.exhausted():
            self.stopped_by = "deadline" if why == "deadline" else "budget"
        return why is None

    @property
    def _unfounded(self) -> bool:
        """Retrieved, found nothing at all, and the service abstains then."""
        abstains = self.inquiry.settings.answers.no_evidence == "abstain"
        return abstains and self.plan.retrieved > 0 and not self.seen

    async def _cycle(self) -> AsyncIterator[BaseEvent]:
        """One turn, and the document it asks for."""
        async with closing(self._turn()) as events:
            async for event in events:
                yield event
        match self.action:
            case GiveUp(stopped_by):
                self.stopped_by = stopped_by
            case Imagine() if self._unfounded:
                self.stopped_by, self.ended = "max_steps", True
            case Search() as search if self._may_go_on():
                async with closing(self._search(search)) as events:
                    async for event in events:
                        yield event
            case Imagine(query) if self._may_go_on():
                async with closing(self._imagine(query)) as events:
                    async for event in events:
                        yield event

    # ---- a turn of the model

    async def _turn(self, final: bool = False) -> AsyncIterator[BaseEvent]:
        """Let the model speak and decide what follows; an answer is shown as it comes."""
        request, call, stream = self._turn_request(), self.record.call(), self._stream()
        try:
            async with closing(call.write("reader", request, "draft", final=final)) as tokens:
                async for token in tokens:
                    if isinstance(token, Withdraw):
                        stream = self._stream()
                        for event in self.record.restart():
                            yield event
                        continue
                    for event in self._show(stream.feed(token.text), stream.text):
                        yield event
        finally:
            self.record.owed = self.record.owed.plus(call.usage)
        for event in self._show(stream.finish(), stream.text):
            yield event
        self.dialogue.learn(request.messages, call.usage.prompt_tokens)
        self.action = self.plan.decide(stream.text, self.dialogue.shown, cut=call.cut)
        if isinstance(self.action, Remind):
            self.wrong = stream.text
            for event in self.record.restart():
                yield event
            return
        self.dialogue.reply(stream.text)
        for event in self._read(stream.text):
            yield event
        self._flag_cut(call, stream.text)

    def _stream(self) -> TurnStream:
        return TurnStream(self.plan.form)

    def _turn_request(self) -> GenerationRequest:
        settings, most = self.inquiry.settings.autorag, self.plan.max_tokens
        served = self.inquiry.roles.reader.generator.capabilities.context_tokens
        context = min(settings.context_tokens, served or settings.context_tokens)
        messages = self.dialogue.fitted(context - most)
        if messages != self.dialogue.messages and self.record.step:
            self.record.step.flag("shortened")
        if self.wrong is not None:
            templates, first = self.inquiry.roles.reader.templates, not self.plan.retrieved
            messages = [*messages, *reminder(templates, self.wrong, first=first)]
        stop = () if self.tuned else FEW_SHOT_STOPS
        return GenerationRequest(messages=tuple(messages), max_tokens=most, stop=stop)

    def _show(self, pieces: list[Piece], text: str) -> list[BaseEvent]:
        """The events of pieces of the turn whose text so far is `text`."""
        events: list[BaseEvent] = []
        for piece in pieces:
            if piece.kind == "void":
                events += self.record.withdraw()
            elif piece.kind == "draft":
                events += self.record.draft(piece.text)
            elif not self._unfounded:
                events += self._answer(piece.text, read_turn(text, self.plan.form).thought)
        return events

    def _answer(self, text: str, thought: str | None) -> list[BaseEvent]:
        """More of the answer, written after `thought`; without passages it is closed-book."""
        if self.seen and thought:
            self.record.read(thought)
        events = self.record.write(text, thought)
        if not self.seen and self.record.step:
            self.record.step.flag("closed_book")
        return events

    def _read(self, text: str) -> list[BaseEvent]:
        """What a whole turn changes: its reasoning is kept, its answer stands or falls."""
        self.unread = False
        asked_again, self.wrong = self.wrong is not None, None
        if asked_again and isinstance(self.action, Search):
            self.action = replace(self.action, repaired=True)
        self.thought = (
            None if isinstance(self.action, GiveUp) else read_turn(text, self.plan.form).thought
        )
        if self.seen:
            self.finding = self.thought
            self.record.read(self.thought)
        if not isinstance(self.action, Conclude):
            return self.record.withdraw()
        self.ended = True
        if self._unfounded:
            return []
        events = self._answer(self.action.answer[len(self.record.answer) :], self.thought)
        if asked_again and self.record.step:
            self.record.step.flag("repaired")
        return events

    def _flag_cut(self, call: OpenStep, text: str) -> None:
        """An answer that reaches the end of a text that was cut is no whole one."""
        step, answer = self.record.step, self.record.answer
        if call.cut and step is not None and answer and ends_with(text, answer):
            step.flag("shortened")

    # ---- documents

    async def _search(self, search: Search) -> AsyncIterator[BaseEvent]:
        """Lines 7 to 9: the first m passages not seen before are the next user turn.

        Excluding what was seen before the cut makes the depth of the search irrelevant
        (METHODS.md §6 #17).
        """
        step, events = self.record.open("retrieve", self.record.question, self.thought)
        for event in events:
            yield event
        if search.repaired:
            step.flag("repaired")
        if self.plan.shortened:
            step.flag("shortened")
        if self.plan.echoed:
            step.flag("prompt_example")
        yield step.begin_search(search.query)
        top_k = self.inquiry.request.top_k or self.inquiry.settings.autorag.limits.passages
        result = await step.search(search.query, top_k, frozenset(self.seen))
        passages = [hit.passage for hit in result.passages]
        yield step.passages_event(result, [True] * len(passages), [None] * len(passages))
        if not passages:
            step.flag("no_new_evidence" if self.seen else "no_evidence")
        self.seen.update({passage.passage_id: passage for passage in passages})
        bare = document_text(passage.text for passage in passages)
        text = bare if self.tuned else titled_text(passages)
        self.dialogue.document(self.plan.document_number, text)
        self.unread = bool(passages)

    async def _imagine(self, query: str) -> AsyncIterator[BaseEvent]:
        """Lines 13 and 14: the model writes the document itself."""
        step, events = self.record.open("retrieve", query, self.thought)
        for event in events:
            yield event
        step.flag("closed_book")
        if self.plan.shortened:
            step.flag("shortened")
        templates = self.inquiry.roles.reader.templates
        request = knowledge_request(templates, self.plan.question, query)
        pieces: list[str] = []
        async with closing(step.write("reader", request, "draft")) as tokens:
            async for token in tokens:
                if isinstance(token, Token):
                    pieces.append(token.text)
                else:
                    pieces.clear()
                yield token
        yield Token(step=step.id, role="draft", text="\n\n")  # its reading follows in the same step
        self.dialogue.document(self.plan.document_number, document_text(["".join(pieces)]))
        self.unread = True

    # ---- the end

    async def _last_words(self) -> AsyncIterator[BaseEvent]:
        """No step may follow: answer from documents not read yet, else from what was written of an
        answer or thought last, else directly."""
        may_read = self.final or self.stopped_by != "deadline"
        if self.unread and may_read:
            for event in self.record.restart():
                yield event
            try:
                async with closing(self._turn(self.final)) as events:
                    async for event in events:
                        yield event
            except LimitReached as limit:
                self.stopped_by = limit.stopped_by
        if self.ended or self._unfounded or self.record.answer:
            return
        if self.finding:
            for event in self.record.write(self.finding, None):
                yield event
            return
        async with closing(self._answer_directly()) as events:
            async for event in events:
                yield event

    def _direct_request(self) -> GenerationRequest:
        reader = self.inquiry.roles.reader
        published = self.tuned and reader.templates.has("autorag_naive")
        if published or not self.seen:
            return naive_request(reader.templates, self.plan.question)
        most = reader.generator.capabilities.passages or EVIDENCE
        newest = list(self.seen.values())[-most:]
        return evidence_request(reader.templates, self.plan.question, newest)

    async def _answer_directly(self) -> AsyncIterator[BaseEvent]:
        """NAIVE (line 17), which published checkpoints answer from memory; other models answer from
        the newest passages where any were found."""
        step, events = self.record.open_answer(None)
        for event in events:
            yield event
        step.flag("fallback_direct")
        if not self.seen:
            step.flag("closed_book")
        if self.plan.echoed:
            step.flag("prompt_example")
        request = self._direct_request()
        try:
            async with closing(
                step.write("reader", request, self.record.as_role, final=self.final)
            ) as tokens:
                async for token in tokens:
                    if isinstance(token, Withdraw):
                        self.record.answer = ""
                    else:
                        self.record.answer += token.text
                    yield token
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by
        self._flag_cut(step, self.record.answer)
        prompt = request.messages[-1].content
        if isinstance(prompt, Prompt) and self.record.answer and prompt.gives(self.record.answer):
            step.flag("prompt_example")
            for event in self.record.withdraw("repair") if self.seen else []:
                yield event
