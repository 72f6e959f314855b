"""The loop `autorag` (METHODS.md §2.2): one model talks with the retriever until it can answer.
`Policy` decides, this module makes the calls.

Each retrieval is a step `retrieve` with the `thought` and `query` of the turn that requested it
(and the cost of that turn's call), and with its `passages`. All of them are kept, because nothing
judges them. Its `answer` is the reasoning of the turn that read the passages, whose text is
streamed as drafts. A document that the model wrote from its own knowledge is a step `retrieve` as
well, flagged `closed_book`. Its question is the query for which it was written; it has no `query`
event, so it is not counted as a retrieval. The answer is a step `answer`. The first turn is shown
once it is known which step it opens.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from service.answer.calls import Role
from service.answer.events import BaseEvent, ThoughtWritten, Token, Withdraw
from service.answer.evidence import same_question
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import AutoragMode, StepKind
from service.core.errors import LimitReached
from service.core.settings.loops import AutoragSettings
from service.engines.base import GenerationRequest
from service.prompts.quoting import quote
from service.prompts.templates import Prompt, passage_line
from service.strategies.autorag_dialogue import (
    ANYWHERE,
    AT_LINES,
    DIRECT_TOKENS,
    FEW_SHOT_STOPS,
    Action,
    Dialogue,
    Policy,
    knowledge_request,
    naive_request,
    opening,
    read_turn,
    reasoning_of,
    reminder,
)
from service.strategies.base import Method
from service.strategies.reader import verify, write_answer
from service.strategies.reading.answers import read_answer
from service.strategies.reading.text import ends_with

MOST_PARAMETRIC: Final = 5  # T^PK: answers from the model's own knowledge
CONTEXT_TOKENS: Final = 8192  # of a dialogue; the oldest documents are removed first
EVIDENCE: Final = 6  # passages, as many as three searches find


def autorag_mode(settings: AutoragSettings, reader: Role) -> AutoragMode:
    """Return the mode that is set, or else the one that the reader's model was trained on."""
    return settings.mode or reader.generator.capabilities.autorag or "few_shot"


class Autorag(Method):
    """The model talks with the retriever until it answers or T retrievals are made. Then it writes
    at most T^PK documents itself, and finally it answers directly. T is `max_steps`, and T^PK at
    most T; m is `top_k`.

    `owed`: the cost of calls that have not been charged to a step yet. `thought`: the reasoning of
    the newest turn; `finding`: the newest reasoning on passages; `unread`: documents came after it;
    `wrong`: the newest turn, if it was not in the form. `asked`: what was searched for, and what
    the model wrote documents on.
    """

    name = "autorag"
    default_steps = 5
    default_top_k = 2

    def __init__(self, scope: Scope, question: str) -> None:
        super().__init__(scope, question)
        settings = self.inquiry.settings.autorag
        mode = autorag_mode(settings, self.reader)
        self.tuned = mode == "tuned"
        self.dialogue = Dialogue(opening(self.templates, mode, question.strip()))
        self.policy = Policy(
            question.strip(),
            self.max_steps,
            min(MOST_PARAMETRIC, self.max_steps),
            ANYWHERE if self.tuned else AT_LINES,
            examples="" if self.tuned else self.dialogue.messages[0].content,
        )
        self.action = Action("retrieve")
        self.asked: set[tuple[StepKind, str]] = set()
        self.thought: str | None = None
        self.finding: str | None = None
        self.unread = False
        self.wrong: str | None = None
        self.owed: Counter[str] = Counter()  # what calls used that no step has been charged with
        self.drafted = False  # in the open step

    async def run(self) -> str | None:
        with self.scope.limited():
            while self.action.kind not in ("conclude", "give_up") and self.scope.may_go_on():
                await self._cycle()
        await self._last_words()
        if read_answer(self.answer, self.policy.question).declined:
            self.open_step.flag("declined")
            await self._withdraw("repair")
        return await self._close()

    @property
    def _unfounded(self) -> bool:
        """Whether all retrievals found nothing and the settings require abstaining then."""
        return self.inquiry.abstains and self.policy.retrieved > 0 and not self.seen

    async def _cycle(self) -> None:
        """Make one turn, and get the document it asks for."""
        await self._turn()
        if self.action.kind == "imagine" and self._unfounded:
            self.action = Action("give_up", stopped_by="max_steps")
        if self.action.kind == "give_up":
            self.scope.stopped_by = self.action.stopped_by
        elif self.action.kind in ("retrieve", "imagine") and self.scope.may_go_on():
            await (self._search if self.action.kind == "retrieve" else self._imagine)(self.action)

    @property
    def answer(self) -> str:
        """What was written of the answer and not withdrawn."""
        return (self.open_step.answer or "") if self.open_step.kind == "answer" else ""

    # ---- steps, of which at most one is open

    async def _open(self, kind: StepKind, question: str, thought: str | None) -> OpenStep:
        """End the open step and start the next one, which is charged with the owed cost."""
        step = await self.open(kind, question)
        self.drafted = False
        self._charge()
        if thought:
            await step.emit(ThoughtWritten(text=thought))
        return step

    async def _open_answer(self, thought: str | None = None) -> OpenStep:
        """Return the step in which the answer is written; start it if it is not open."""
        if self.open_step.kind == "answer":
            return self.open_step
        return await self._open("answer", self.question, thought)

    def _find(self, thought: str | None) -> None:
        """Set the reasoning on the documents of the open retrieval."""
        if self.open_step.kind == "retrieve":
            self.open_step.answer = thought

    async def _withdraw(self, reason: Literal["restart", "repair"] = "restart") -> None:
        """Withdraw what was written of the answer."""
        if self.answer:
            self.open_step.answer = None
            await self.open_step.emit(Withdraw(role=self.open_step.as_role, reason=reason))

    async def _restart(self) -> None:
        """Withdraw the turn in progress, which will be written again."""
        await self._withdraw()
        if self.drafted:
            await self.open_step.emit(Withdraw(role="draft", reason="restart"))

    async def _close(self) -> str | None:
        """End the last step with the remaining answer, and return that. The step is charged with
        the owed cost; without a step so far, it is that of the answer.
        """
        if not self.open_step.id:
            await self._open_answer()
        if self.answer:
            await verify(self.open_step, self.seen.values())
        self._charge()
        await self.close()
        return self.answer or None

    def _charge(self) -> None:
        self.open_step.usage.update(self.owed)
        self.owed.clear()

    # ---- a turn of the model

    async def _turn(self, final: bool = False) -> None:
        """Let the model write a turn, whose reasoning is shown as it arrives, and decide what
        follows. At a limit of the question, a trained model's answer is what was written of it."""
        request, form = self._turn_request(), self.policy.form
        call = OpenStep(self.scope, "", "retrieve")  # never shown; a step that is will be charged
        shown = 0

        async def show(event: BaseEvent) -> None:
            nonlocal shown
            if isinstance(event, Token):
                shown = await self._draft(reasoning_of(call.written, form), shown)
            else:
                shown = 0
                await self._restart()

        try:
            await call.write("reader", request, "draft", final=final, show=show)
        except LimitReached:
            turn = read_turn(call.written, form)
            if self.tuned and turn.final and not (turn.query or self._unfounded):
                await self._answer(turn.final, turn.thought)
            raise
        finally:
            self.owed.update(call.usage)
        await self._draft(reasoning_of(call.written, form, ended=True), shown)
        self.dialogue.learn(request.messages, call.usage["prompt_tokens"])
        self.action = self.policy.decide(call.written, self.dialogue.shown, cut=call.cut)
        if self.action.kind == "remind":
            self.wrong = call.written
            await self._restart()
            return
        self.dialogue.reply(call.written)
        await self._read(call.written)
        self._flag_cut(call, call.written)

    def _turn_request(self) -> GenerationRequest:
        most = self.policy.max_tokens
        context = min(CONTEXT_TOKENS, self.able.context_tokens or CONTEXT_TOKENS)
        messages = self.dialogue.fitted(context - most)
        if messages != self.dialogue.messages:
            self.open_step.flag("shortened")
        if self.wrong is not None:
            first = not self.policy.retrieved
            messages = [*messages, *reminder(self.templates, self.wrong, first=first)]
        stop = () if self.tuned else FEW_SHOT_STOPS
        return GenerationRequest(messages=tuple(messages), max_tokens=most, stop=stop)

    async def _draft(self, reasoning: str, shown: int) -> int:
        """Show the reasoning of a turn from place `shown` on, in the step whose documents it is
        about, if there is one. Return its end."""
        if self.open_step.kind == "retrieve" and (fresh := reasoning[shown:]):
            self.drafted = True
            await self.open_step.emit(Token(role="draft", text=fresh))
        return max(shown, len(reasoning))

    async def _answer(self, text: str, thought: str | None) -> None:
        """Emit the answer, written after `thought`. Without passages it is flagged
        `closed_book`."""
        if self.seen and thought:
            self._find(thought)
        step = await self._open_answer(thought)
        if not self.seen:
            step.flag("closed_book")
        await step.say(text)

    async def _read(self, text: str) -> None:
        """Apply a complete turn: keep its reasoning, and emit its answer."""
        self.unread = False
        asked_again, self.wrong = self.wrong is not None, None
        kind = self.action.kind
        if asked_again and kind == "retrieve":
            self.action = self.action._replace(repaired=True)
        self.thought = None if kind == "give_up" else read_turn(text, self.policy.form).thought
        if self.seen:
            self.finding = self.thought
            self._find(self.thought)
        if kind != "conclude" or self._unfounded:
            return
        await self._answer(self.action.text, self.thought)
        if asked_again:
            self.open_step.flag("repaired")

    def _flag_cut(self, call: OpenStep, text: str) -> None:
        """Flag an answer that is incomplete because it reaches the end of a text that was cut."""
        if call.cut and self.answer and ends_with(text, self.answer):
            self.open_step.flag("shortened")

    # ---- documents

    async def _search(self, search: Action) -> None:
        """Lines 7 to 9: the first m passages not seen before are the next user turn.

        Excluding what was seen before the cut makes the depth of the search irrelevant
        (METHODS.md §6 #17).
        """
        step = await self._open("retrieve", self.question, self.thought)
        if search.repaired:
            step.flag("repaired")
        if self.policy.shortened:
            step.flag("shortened")
        if self.policy.echoed:
            step.flag("prompt_example")
        passages = await self.find(step, search.text, self.top_k, frozenset(self.seen))
        repeated = self._is_repeated("retrieve", search.text)
        if repeated and not (passages or search.repaired):
            self._give_up(step)
        # each text after its title for models that were not trained on texts alone
        texts = [
            quote(passage.text) if self.tuned else passage_line(passage) for passage in passages
        ]
        self.dialogue.document(self.policy.document_number, " ".join(texts))
        self.unread = bool(passages)

    def _is_repeated(self, kind: StepKind, query: str) -> bool:
        """Whether an untrained model asks the same again. A trained one does so as published."""
        asked = kind, same_question(query)
        repeated = asked in self.asked and not self.tuned
        self.asked.add(asked)
        return repeated

    def _give_up(self, step: OpenStep) -> None:
        step.flag("no_progress")
        self.action = Action("give_up")

    async def _imagine(self, imagined: Action) -> None:
        """Lines 13 and 14: the model writes the document itself."""
        query = imagined.text
        if self._is_repeated("answer", query):
            return self._give_up(self.open_step)  # it would write the same document
        step = await self._open("retrieve", query, self.thought)
        step.flag("closed_book")
        if self.policy.shortened:
            step.flag("shortened")
        request = knowledge_request(self.templates, self.policy.question, query)
        await step.write("reader", request, "draft")
        await step.emit(Token(role="draft", text="\n\n"))  # its reasoning follows in the same step
        self.dialogue.document(self.policy.document_number, quote(step.written))
        self.unread = True
        return None

    # ---- the end

    async def _last_words(self) -> None:
        """Finish without another step: answer from documents that were not read yet, else from the
        newest answer or thought, else directly.
        """
        may_read = self.scope.final or self.scope.stopped_by != "deadline"
        if self.unread and may_read:
            await self._restart()
            with self.scope.limited():
                await self._turn(self.scope.final)
        if self._unfounded or self.answer:
            return
        if self.finding:
            await self._answer(self.finding, None)
        else:
            await self._answer_directly()

    async def _answer_directly(self) -> None:
        """Run NAIVE (line 17). Published checkpoints answer it from memory. Other models answer
        from the newest passages, and without passages only if the settings allow it.
        """
        published = self.tuned and self.templates.has("autorag_naive")
        evidence = bool(self.seen) and not published
        invited = published or self.inquiry.settings.answers.invites_memory
        if not (evidence or invited):
            return
        step = await self._open_answer()
        step.flag("fallback_direct")
        if self.policy.echoed:
            step.flag("prompt_example")
        await (self._answer_from_passages(step) if evidence else self._answer_from_memory(step))

    async def _answer_from_passages(self, step: OpenStep) -> None:
        newest = list(self.seen.values())[-(self.able.passages or EVIDENCE) :]
        prompt = self.templates.fill("answer", self.policy.question, passages=newest)
        await write_answer(step, prompt, DIRECT_TOKENS)

    async def _answer_from_memory(self, step: OpenStep) -> None:
        if not self.seen:
            step.flag("closed_book")
        request = naive_request(self.templates, self.policy.question)
        with self.scope.limited():
            await step.write("reader", request, step.as_role, final=step.final)
        step.answer = step.written
        self._flag_cut(step, self.answer)
        prompt = request.messages[-1].content
        if isinstance(prompt, Prompt) and self.answer and prompt.gives(self.answer):
            step.flag("prompt_example")
