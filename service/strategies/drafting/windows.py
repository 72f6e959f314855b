"""Retrieval at every window of the text, for the text written last (METHODS.md §7.4, §7.5).

Each round is a step `retrieve`: `query`, `passages`, and as `answer` the window that the model then
writes. The first query is the question, every other the window before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from service.answer.calls import Roles
from service.answer.events import ThoughtWritten, TokenRole
from service.answer.inquiry import Scope
from service.core.settings import Settings
from service.engines.base import FinishReason
from service.strategies.base import Outcome
from service.strategies.drafting.chain import PHRASE, WholeText, is_answered, join
from service.strategies.drafting.layout import ROLES, lacking_template
from service.strategies.drafting.pieces import DraftReader, PieceRun, WrittenText, write
from service.strategies.drafting.run import baseline_options
from service.strategies.drafting.steps import conclude, search
from service.text.tagging import Splitter


@dataclass(slots=True, kw_only=True)
class WindowRun(PieceRun):
    """A question that is answered window by window. `read` opens a window of at most `most` tokens
    (default: L); `query` is searched next; `finish` says how the newest window ended."""

    read: Callable[[Splitter], DraftReader]
    most: int | None
    query: str
    finish: FinishReason | None = None

    @property
    def answered(self) -> bool:
        return states_answer(self.layout.written, self.finish, self.splitter)

    def take(self, written: WrittenText) -> None:
        """Append a window to the text. One that was cut may end within a word."""
        text = self.layout.written
        raw = "".join(piece.text for piece in written.pieces)
        if isinstance(written.reading, WholeText) and self.finish == "length":
            text = glue(text, raw)
        else:
            text = join(text, written.kept)
        self.layout = replace(self.layout, written=text)
        self.used += len(written.tokens)
        self.finish = written.finish
        self.ended = written.over


def missing(roles: Roles, settings: Settings) -> str | None:
    """Return what this deployment lacks for a loop over windows, or None."""
    return lacking_template(roles.reader.templates, ROLES)


async def run_windows(
    scope: Scope,
    question: str,
    as_role: TokenRole,
    read: Callable[[Splitter], DraftReader],
    most: int | None = None,
) -> Outcome:
    """Write windows until the text states its answer, reaches L, or ends."""
    run = await WindowRun.begin(
        scope,
        question,
        as_role,
        baseline_options(scope.inquiry),
        read=read,
        most=most,
        query=question.strip(),
    )
    await run.rounds(partial(_round, run))
    return await conclude(run)


async def _round(run: WindowRun) -> None:
    """Retrieve and write a window; if no retrieval is left, write the rest of the text."""
    if not run.may_retrieve:
        return await _rest(run)
    await run.open("retrieve")
    await search(run, run.query)
    if not run.layout.passages:
        run.step.flag("no_evidence")
    written = await write(run, partial(run.read, run.splitter), run.most)
    run.take(written)
    run.query = written.kept
    run.step.answer = written.kept or None
    return None


async def _rest(run: WindowRun) -> None:
    await run.open("answer")
    written = await write(run, WholeText)
    run.take(written)
    if written.kept:
        await run.step.emit(ThoughtWritten(text=written.kept))
    run.stopped_by, run.ended = "max_steps", True


def glue(text: str, window: str) -> str:
    """Append a window that follows directly, possibly within a word: its white space is kept."""
    return join(text, window) if window[:1].isspace() or not text else text + window.rstrip()


def states_answer(text: str, finish: FinishReason | None, splitter: Splitter) -> bool:
    """Whether a text states its answer. If its window was cut, the sentence with the answer must be
    complete.
    """
    if not is_answered(text) or finish != "length":
        return is_answered(text)
    statement = text.partition(PHRASE)[2]
    return len(splitter.sentences(statement)) > 1 or statement.rstrip().endswith((".", "!", "?"))
