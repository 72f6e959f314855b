"""DRAGIN's decisions (METHODS.md §3.2, §3.3), pure: RIND, which word of a draft requests retrieval
(steps 4 to 7), and QFS, the query of the words that this word attends to most (lines 8 and 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from service.engines.signals import AttentionRow, ContextRows, Scoring, Span
from service.text.tagging import Tagger


@dataclass(frozen=True, slots=True)
class Word:
    """A word made of the tokens `first` to `last`. `text` is what they spell at `span`, without
    white space."""

    text: str
    span: Span
    first: int
    last: int

    @property
    def tokens(self) -> range:
        return range(self.first, self.last + 1)


def group_words(text: str, spans: Sequence[Span], first: int = 0) -> list[Word]:
    """Return the words of `text`, whose tokens lie at `spans`; the first is token number `first`.

    A word starts with the first token and with each that brings white space, in its own text or,
    where a tokenizer cuts that off, before it. That is the rule of the official code for Llama-2
    (`▁`, a line break) and holds for any tokenizer; punctuation joins the word before it, and so
    does the token that ends a draft, whose span is empty.
    """
    starts: list[int] = []
    end = 0
    for index, (begin, stop) in enumerate(spans):
        brought = text[end:begin] + text[begin : min(begin + 1, stop)]
        if not index or (begin >= end and any(map(str.isspace, brought))):
            starts.append(index)
        end = max(end, stop)
    bounds = [*starts, len(spans)]
    return [_word(text, spans, left, right, first) for left, right in pairwise(bounds)]


def _word(text: str, spans: Sequence[Span], left: int, right: int, offset: int) -> Word:
    begin, end = spans[left][0], max(stop for _, stop in spans[left:right])
    piece = text[begin:end]
    begin += len(piece) - len(piece.lstrip())
    end = max(begin, end - (len(piece) - len(piece.rstrip())))
    return Word(text[begin:end], (begin, end), offset + left, offset + right - 1)


@dataclass(frozen=True, slots=True)
class ScoredWord:
    word: Word
    attention: float
    weight: float
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """The first sentence with a word over θ. `flags`: which of its words are hits once the content
    filter has cleared the others; `strongest` asked for retrieval. `previous`: the sentences
    before, whose words are `before`; `sentence`: this one."""

    previous: str
    sentence: str
    words: tuple[ScoredWord, ...]
    flags: tuple[bool, ...]
    before: tuple[ScoredWord, ...] = ()

    @property
    def strongest(self) -> ScoredWord:
        kept = [word for word, flag in zip(self.words, self.flags, strict=True) if flag]
        return max(kept or self.words, key=lambda word: word.score)


def find_end(sentence: str, words: Sequence[Word], start: int) -> int:
    """Return the index after the last word of a sentence that begins at `start` or later. Return
    `start` if the sentence is not found.

    The last word is never tested, as in the official code.
    """
    joined = ""
    for end in range(start + 1, len(words)):
        joined = f"{joined} {words[end - 1].text}" if end > start + 1 else words[start].text
        if sentence in joined:
            return end
    return start


def score_words(
    words: Sequence[Word],
    attention: Sequence[float],
    weights: Sequence[float],
    *,
    weigh_last: bool = False,
) -> tuple[ScoredWord, ...]:
    """Score the words of one sentence: the sum of attention times the mean of weight (steps 3, 5).

    Of each token of the draft, `attention` is what it receives, and `weights` has the entropy (or
    −log p) of the distribution from which it was taken. Attention that is 0 in the whole sentence
    stays 0.
    """
    received = [sum(attention[t] for t in word.tokens) for word in words]
    if weigh_last:
        received = _weigh_last(received)
    means = [sum(weights[t] for t in word.tokens) / len(word.tokens) for word in words]
    total = sum(received)
    factor = len(words) / total if total > 0 else 0.0
    return tuple(
        ScoredWord(word, a, h, a * factor * h)
        for word, a, h in zip(words, received, means, strict=True)
    )


def _weigh_last(attention: Sequence[float]) -> list[float]:
    """Return the attention per word, the last word's raised to the mean of the others.

    Only later words attend to a word, and no word follows the last one, where answers stand. Its
    own attention carries no information, so it counts as an average word, whose score is its
    entropy; so does the only word of a sentence.
    """
    *others, last = attention or [0.0]
    return [*others, max(last, sum(others) / len(others) if others else 1.0)] if attention else []


def judge(
    previous: Sequence[str],
    sentence: str,
    scored: tuple[ScoredWord, ...],
    threshold: float,
    tag: Tagger,
    *,
    gated: bool = False,
) -> Hit | None:
    """Return the hit of one sentence, or None (steps 6 and 7). If `gated`, words without content
    cannot trigger (METHODS.md §3.4 #3)."""
    over = [word.score > threshold for word in scored]
    if not any(over):
        return None
    content = tag(sentence)
    flags = tuple(
        flag and has_content(word.word.text, content)
        for word, flag in zip(scored, over, strict=True)
    )
    if gated and not any(flags):
        return None
    return Hit(" ".join(previous), sentence, scored, flags)


def has_content(word: str, content: frozenset[str]) -> bool:
    """Whether a word contains a content word of its text, as in the official code."""
    return any(term in word for term in content)


def score_tokens(
    text: str,
    spans: Sequence[Span],
    words: Sequence[Word],
    attention: Sequence[float],
    weights: Sequence[float],
    tag: Tagger,
) -> tuple[ScoredWord, ...]:
    """Score each token of a draft (the paper's equation 5): entropy times the greatest attention
    of a later token, 0 if its word has no content. Each is a word of its own."""
    content = tag(text)
    scored: list[ScoredWord] = []
    for word in words:
        factor = float(has_content(word.text, content))
        for token in word.tokens:
            span, a, h = spans[token], attention[token], weights[token]
            single = Word(text[slice(*span)].strip(), span, token, token)
            scored.append(ScoredWord(single, a, h, a * h * factor))
    return tuple(scored)


def find_token(
    text: str, scored: Sequence[ScoredWord], threshold: float, first: int = 0
) -> Hit | None:
    """Return the hit of the first token over θ from number `first` on. The draft is cut before it
    (equation 6): `previous` is what stays, and no sentence is written again."""
    hits = (token for token in scored[first:] if token.score > threshold)
    hit = next(hits, None)
    if hit is None:
        return None
    before = tuple(scored[: hit.word.first])
    return Hit(text[: hit.word.span[0]].rstrip(), "", (hit,), (True,), before)


# ---- QFS


def last_tokens(text: str, spans: Sequence[Span], most: int) -> str:
    """Return the last `most` tokens of `text`, whose tokens lie at `spans`."""
    return text[spans[-most][0] :].strip() if len(spans) > most else text


@dataclass(frozen=True, slots=True)
class QueryContext:
    """C: its `words`, by tokens of a context, the `hits` among them by index, and all its `tokens`,
    over which a row is normalised."""

    words: Sequence[Word]
    hits: frozenset[int]
    tokens: Sequence[int]


def query_text(question: str, text: str, hit: Hit) -> tuple[str, tuple[Span, ...]]:
    """Join question, text, the previous sentences and the words of the hit's sentence by spaces.
    Return C as a text of its own, and the spans of the hit words in it.

    Empty parts leave their space, as in the official code.
    """
    joined = f"{question} {text} {hit.previous} "
    spans: list[Span] = []
    for scored, flag in zip(hit.words, hit.flags, strict=True):
        word = scored.word.text
        if flag and word:
            spans.append((len(joined), len(joined) + len(word)))
        joined += f"{word} "
    return joined[:-1], tuple(spans)


def certain_words(hit: Hit) -> str:
    """Return the sentence of the hit without its hit words."""
    pairs = zip(hit.words, hit.flags, strict=True)
    return " ".join(scored.word.text for scored, flag in pairs if not flag)


def text_context(text: str, hit_spans: Sequence[Span], scoring: Scoring) -> QueryContext:
    """Return C from a pass over its text. A hit without a word at exactly its place is skipped
    (METHODS.md §6 #23).
    """
    spans = [token.span for token in scoring.tokens]
    first = next((n for n, (begin, end) in enumerate(spans) if end > begin), len(spans))
    words = group_words(text, spans[first:], first)
    wanted = set(hit_spans)
    hits = frozenset(index for index, word in enumerate(words) if word.span in wanted)
    return QueryContext(words, hits, range(len(spans)))


def generation_context(
    context: ContextRows, text: str, regions: Sequence[Span], hits: Iterable[int]
) -> QueryContext:
    """Return C inside a generation's own context `text`: what lies in its `regions`.

    `hits` are tokens of the hit words, one of each at least.
    """
    words: list[Word] = []
    for begin, end in regions:
        tokens = [n for n, span in enumerate(context.spans) if span[0] < end and span[1] > begin]
        if tokens:
            inside = context.spans[tokens[0] : tokens[-1] + 1]
            words += group_words(text, inside, tokens[0])
    asked = set(hits)
    found = frozenset(n for n, word in enumerate(words) if not asked.isdisjoint(word.tokens))
    return QueryContext(words, found, [token for word in words for token in word.tokens])


def word_attention(context: QueryContext, rows: Sequence[AttentionRow]) -> list[float] | None:
    """Return how much the hit words attend to each word of C, or None if no hit has a row.

    For each piece of a hit word the row that predicted it, over the tokens of C before the word,
    normalised to 1; averaged over pieces and hits, summed into words.
    """
    by_token: Mapping[int, Sequence[float]] = {row.token: row.weights for row in rows}
    received: dict[int, float] = {}
    counted = 0
    for index in context.hits:
        word = context.words[index]
        pieces = [by_token[token] for token in word.tokens if token in by_token]
        counted += bool(pieces)
        for row in pieces:
            before = [token for token in context.tokens if token < word.first]
            total = sum(row[token] for token in before)
            share = 1 / (total * len(word.tokens)) if total > 0 else 0.0
            for token in before:
                received[token] = received.get(token, 0.0) + row[token] * share
    if not counted:
        return None
    return [
        sum(received.get(token, 0.0) for token in word.tokens) / counted for word in context.words
    ]


def top_tokens(context: QueryContext, weights: Sequence[float], end: int, most: int) -> str:
    """Return the words of the `most` tokens of C before token `end` that the row attends to most,
    in their order (the paper's 3.2)."""
    before = [token for token in context.tokens if token < end]
    top = set(sorted(before, key=lambda token: weights[token], reverse=True)[:most])
    return " ".join(word.text for word in context.words if not top.isdisjoint(word.tokens))


def keep_content_words(
    context: QueryContext, weights: Sequence[float] | None, content: frozenset[str], most: int
) -> str:
    """Return the `most` words that receive most attention, have content and are not hits, in their
    order. Without weights (no hit survived the content filter), return the first ones."""
    candidates = [
        index
        for index, word in enumerate(context.words)
        if index not in context.hits and has_content(word.text, content)
    ]
    if weights is not None:
        candidates.sort(key=lambda index: weights[index], reverse=True)
    return " ".join(context.words[index].text for index in sorted(candidates[:most]))
