"""The loop `autorag` (METHODS.md §2.2). `Policy` decides, this module makes the calls, and
`StepEmitter` emits the steps.

Each retrieval is a step `retrieve` with the `thought` and `query` of the turn that requested it
(and the cost of that turn's call), and with its `passages`. All of them are kept, because nothing
judges them. Its `answer` is the reasoning of the turn that read the passages, whose text is
streamed as drafts. A document that the model wrote from its own knowledge is a step `retrieve` as
well, flagged `closed_book`. Its question is the query for which it was written; it has no `query`
event, so it is not counted as a retrieval. The answer is a step `answer`. The first turn is shown
once it is known which step it opens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from service.answer.calls import Role
from service.answer.events import BaseEvent, Token, TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import AutoragMode, LoopName, Passage, StoppedBy
from service.core.errors import LimitReached
from service.core.settings import AutoragSettings
from service.engines.base import GenerationRequest
from service.prompts.templates import Prompt
from service.strategies.autorag.decisions import (
    DIRECT_TOKENS,
    Action,
    Conclude,
    GiveUp,
    Imagine,
    Policy,
    Remind,
    Retrieve,
)
from service.strategies.autorag.dialogue import (
    FEW_SHOT_STOPS,
    Dialogue,
    document_text,
    evidence_prompt,
    knowledge_request,
    naive_request,
    opening,
    reminder,
    titled_text,
)
from service.strategies.autorag.steps import StepEmitter
from service.strategies.autorag.turns import ANYWHERE, AT_LINES, TurnPiece, TurnStream, read_turn
from service.strategies.base import Outcome
from service.strategies.revelator.generation import write_answer
from service.strategies.revelator.parsing import ends_with, read_answer

MOST_RETRIEVALS: Final = 5  # T, unless the request has `max_steps`
PASSAGES: Final = 2  # m, unless the request has `top_k`
CONTEXT_TOKENS: Final = 8192  # of a dialogue; the oldest documents are removed first
EVIDENCE: Final = 6  # passages, as many as three searches find


def autorag_mode(settings: AutoragSettings, reader: Role) -> AutoragMode:
    """Return the mode that is set, or else the one that the reader's model was trained on."""
    return settings.mode or reader.generator.capabilities.autorag or "few_shot"


class Autorag:
    """The model talks with the retriever until it answers or T retrievals are made. Then it writes
    at most T^PK documents itself, and finally it answers directly.
    """

    name: LoopName = "autorag"

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """T is the request's `max_steps`, if given. T^PK is at most T."""
        inquiry = scope.inquiry
        settings = inquiry.settings.autorag
        most = inquiry.request.max_steps or MOST_RETRIEVALS
        parametric = min(settings.max_parametric, most)
        mode = autorag_mode(settings, inquiry.roles.reader)
        messages = opening(inquiry.roles.reader.templates, mode, question.strip())
        tuned = mode == "tuned"
        form = ANYWHERE if tuned else AT_LINES
        conversation = _Conversation(
            inquiry=inquiry,
            policy=Policy(
                question.strip(),
                most,
                parametric,
                form,
                reminds=not tuned,
                examples="" if tuned else messages[0].content,
            ),
            tuned=tuned,
            dialogue=Dialogue(messages),
            steps=StepEmitter(scope, question, as_role),
            final=as_role == "answer",
        )
        return await conversation.run()


@dataclass(slots=True)
class _Conversation:
    """A conversation in progress.

    `final`: the last call may use the time reserve; a part of a compound question leaves it to the
    merge. `thought`: the reasoning of the newest turn; `finding`: the newest reasoning on passages;
    `unread`: documents came after it; `wrong`: the newest turn, if it was not in the form.
    """

    inquiry: Inquiry
    policy: Policy
    tuned: bool
    dialogue: Dialogue
    steps: StepEmitter
    final: bool
    stopped_by: StoppedBy = "answer"
    action: Action | None = None
    ended: bool = False
    seen: dict[str, Passage] = field(default_factory=dict)
    thought: str | None = None
    finding: str | None = None
    unread: bool = False
    wrong: str | None = None

    async def run(self) -> Outcome:
        try:
            while self._may_go_on():
                await self._cycle()
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by
        if not self.ended:
            await self._last_words()
        if read_answer(self.steps.answer, self.policy.question).declined:
            await self.steps.decline()
        return Outcome(await self.steps.close(), self.stopped_by)

    def _may_go_on(self) -> bool:
        if self.ended or isinstance(self.action, GiveUp):
            return False
        if why := self.inquiry.budget.exhausted():
            self.stopped_by = why
        return why is None

    @property
    def _unfounded(self) -> bool:
        """Whether all retrievals found nothing and the settings require abstaining then."""
        return self.inquiry.abstains and self.policy.retrieved > 0 and not self.seen

    @property
    def _published(self) -> bool:
        """Whether the model is a published checkpoint, whose NAIVE answers from memory."""
        return self.tuned and self.inquiry.roles.reader.templates.has("autorag_naive")

    async def _cycle(self) -> None:
        """Make one turn, and get the document it asks for."""
        await self._turn()
        match self.action:
            case GiveUp(stopped_by):
                self.stopped_by = stopped_by
            case Imagine() if self._unfounded:
                self.stopped_by, self.ended = "max_steps", True
            case Retrieve() as search if self._may_go_on():
                await self._search(search)
            case Imagine(query) if self._may_go_on():
                await self._imagine(query)

    # ---- a turn of the model

    async def _turn(self, final: bool = False) -> None:
        """Let the model write a turn and decide what follows; an answer is shown as it arrives."""
        request, call = self._turn_request(), self.steps.call()
        stream = TurnStream(self.policy.form)

        async def show(event: BaseEvent) -> None:
            nonlocal stream
            if isinstance(event, Token):
                await self._show(stream.feed(event.text), stream.text)
            else:
                stream = TurnStream(self.policy.form)
                await self.steps.restart()

        try:
            await call.write("reader", request, "draft", final=final, show=show)
        finally:
            self.steps.owed = self.steps.owed.plus(call.usage)
        await self._show(stream.finish(), stream.text)
        self.dialogue.learn(request.messages, call.usage.prompt_tokens)
        self.action = self.policy.decide(stream.text, self.dialogue.shown, cut=call.cut)
        if isinstance(self.action, Remind):
            self.wrong = stream.text
            await self.steps.restart()
            return
        self.dialogue.reply(stream.text)
        await self._read(stream.text)
        self._flag_cut(call, stream.text)

    def _turn_request(self) -> GenerationRequest:
        most = self.policy.max_tokens
        served = self.inquiry.roles.reader.generator.capabilities.context_tokens
        context = min(CONTEXT_TOKENS, served or CONTEXT_TOKENS)
        messages = self.dialogue.fitted(context - most)
        if messages != self.dialogue.messages and self.steps.step:
            self.steps.step.flag("shortened")
        if self.wrong is not None:
            templates, first = self.inquiry.roles.reader.templates, not self.policy.retrieved
            messages = [*messages, *reminder(templates, self.wrong, first=first)]
        stop = () if self.tuned else FEW_SHOT_STOPS
        return GenerationRequest(messages=tuple(messages), max_tokens=most, stop=stop)

    async def _show(self, pieces: list[TurnPiece], text: str) -> None:
        """Show pieces of the turn whose text so far is `text`."""
        for piece in pieces:
            if piece.kind == "void":
                await self.steps.withdraw()
            elif piece.kind == "draft":
                await self.steps.draft(piece.text)
            elif not self._unfounded:
                await self._answer(piece.text, read_turn(text, self.policy.form).thought)

    async def _answer(self, text: str, thought: str | None) -> None:
        """Emit more of the answer, written after `thought`; without passages it is flagged
        `closed_book`.
        """
        if self.seen and thought:
            self.steps.read(thought)
        await self.steps.write(text, thought)
        if not self.seen and self.steps.step:
            self.steps.step.flag("closed_book")

    async def _read(self, text: str) -> None:
        """Apply a complete turn: keep its reasoning, and accept or withdraw its answer."""
        self.unread = False
        asked_again, self.wrong = self.wrong is not None, None
        if asked_again and isinstance(self.action, Retrieve):
            self.action = replace(self.action, repaired=True)
        self.thought = (
            None if isinstance(self.action, GiveUp) else read_turn(text, self.policy.form).thought
        )
        if self.seen:
            self.finding = self.thought
            self.steps.read(self.thought)
        if not isinstance(self.action, Conclude):
            await self.steps.withdraw()
            return
        self.ended = True
        if self._unfounded:
            return
        await self._answer(self.action.answer[len(self.steps.answer) :], self.thought)
        if asked_again and self.steps.step:
            self.steps.step.flag("repaired")

    def _flag_cut(self, call: OpenStep, text: str) -> None:
        """Flag an answer that is incomplete because it reaches the end of a text that was cut."""
        step, answer = self.steps.step, self.steps.answer
        if call.cut and step is not None and answer and ends_with(text, answer):
            step.flag("shortened")

    # ---- documents

    async def _search(self, search: Retrieve) -> None:
        """Lines 7 to 9: the first m passages not seen before are the next user turn.

        Excluding what was seen before the cut makes the depth of the search irrelevant
        (METHODS.md §6 #17).
        """
        step = await self.steps.open("retrieve", self.steps.question, self.thought)
        if search.repaired:
            step.flag("repaired")
        if self.policy.shortened:
            step.flag("shortened")
        if self.policy.echoed:
            step.flag("prompt_example")
        top_k = self.inquiry.request.top_k or PASSAGES
        result = await step.search(search.query, top_k, frozenset(self.seen))
        passages = [hit.passage for hit in result.passages]
        await step.show_passages(result, [True] * len(passages), [None] * len(passages))
        if not passages:
            step.flag("no_new_evidence" if self.seen else "no_evidence")
        self.seen.update({passage.passage_id: passage for passage in passages})
        bare = document_text(passage.text for passage in passages)
        text = bare if self.tuned else titled_text(passages)
        self.dialogue.document(self.policy.document_number, text)
        self.unread = bool(passages)

    async def _imagine(self, query: str) -> None:
        """Lines 13 and 14: the model writes the document itself."""
        step = await self.steps.open("retrieve", query, self.thought)
        step.flag("closed_book")
        if self.policy.shortened:
            step.flag("shortened")
        templates = self.inquiry.roles.reader.templates
        request = knowledge_request(templates, self.policy.question, query)
        await step.write("reader", request, "draft")
        await step.emit(Token(role="draft", text="\n\n"))  # its reasoning follows in the same step
        self.dialogue.document(self.policy.document_number, document_text([step.written]))
        self.unread = True

    # ---- the end

    async def _last_words(self) -> None:
        """Finish without another step: answer from documents that were not read yet, else from the
        newest answer or thought, else directly.
        """
        may_read = self.final or self.stopped_by != "deadline"
        if self.unread and may_read:
            await self.steps.restart()
            try:
                await self._turn(self.final)
            except LimitReached as limit:
                self.stopped_by = limit.stopped_by
        if self.ended or self._unfounded or self.steps.answer:
            return
        if self.finding:
            await self.steps.write(self.finding, None)
        else:
            await self._answer_directly()

    async def _answer_directly(self) -> None:
        """Run NAIVE (line 17). Published checkpoints answer it from memory. Other models answer
        from the newest passages, and without passages only if the settings allow it.
        """
        evidence = bool(self.seen) and not self._published
        invited = self._published or self.inquiry.settings.answers.invites_memory
        if not (evidence or invited):
            return
        step = await self.steps.open_answer(None)
        step.flag("fallback_direct")
        if self.policy.echoed:
            step.flag("prompt_example")
        await (self._answer_from_passages(step) if evidence else self._answer_from_memory(step))

    async def _answer_from_passages(self, step: OpenStep) -> None:
        reader = self.inquiry.roles.reader
        most = reader.generator.capabilities.passages or EVIDENCE
        newest = list(self.seen.values())[-most:]
        prompt = evidence_prompt(reader.templates, self.policy.question, newest)
        await write_answer(step, prompt, self.steps.as_role, DIRECT_TOKENS)
        self.steps.answer = step.answer or ""
        if step.stopped_by != "answer":
            self.stopped_by = step.stopped_by

    async def _answer_from_memory(self, step: OpenStep) -> None:
        if not self.seen:
            step.flag("closed_book")
        request = naive_request(self.inquiry.roles.reader.templates, self.policy.question)
        try:
            await step.write("reader", request, self.steps.as_role, final=self.final)
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by
        self.steps.answer = step.written
        self._flag_cut(step, self.steps.answer)
        prompt = request.messages[-1].content
        if isinstance(prompt, Prompt) and self.steps.answer and prompt.gives(self.steps.answer):
            step.flag("prompt_example")
