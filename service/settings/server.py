"""The HTTP edge, and what bounds a question and words its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import NoDecode

from service.settings.base import CommaList, Section, SectionWithSecrets


class ServerSettings(SectionWithSecrets):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    insecure: bool = Field(False, description="Serve on another host than loopback without keys.")
    keys: Annotated[list[SecretStr], NoDecode, CommaList] = Field(
        [], description="API keys; sent as `Authorization: Bearer`."
    )
    keys_file: Path | None = Field(
        None, description="A file that holds the keys, by comma or line, in their place."
    )
    max_running: int = Field(64, ge=1, description="Questions answered at once.")
    max_waiting: int = Field(
        256, ge=0, description="Questions that may wait; further ones get 503."
    )
    max_wait_s: float = Field(30.0, gt=0, description="Longest wait before 503.")
    max_body_bytes: int = Field(1_000_000, ge=1_000, description="Larger bodies get 413.")
    drain_s: float = Field(10.0, ge=0, description="Seconds running questions get at SIGTERM.")


class LimitSettings(Section):
    """Per question, beside what a request may ask for."""

    timeout_s: float = Field(60.0, gt=0, le=300)
    max_retrievals: int = Field(64, ge=1)
    max_llm_calls: int = Field(256, ge=1)
    max_tokens: int = Field(400_000, ge=1)


class AnswerSettings(Section):
    """What becomes of answers without evidence, in every loop and on every route but `direct`."""

    no_evidence: Literal["abstain", "closed_book", "top3_unfiltered"] = Field(
        "abstain",
        description="When searches kept no passage: give no answer, let the model answer from "
        "memory, or show it the three best-ranked passages.",
    )
    unsupported: Literal["flag", "abstain", "allow"] = Field(
        "flag",
        description="When neither a kept passage nor a supported sub-answer contains the answer: "
        "give it with the flag `unsupported`, give no answer, or let the model answer from memory "
        "with the flag `closed_book`.",
    )
    no_answer_text: str = Field(
        "No answer was found in the passages.", min_length=1, description="Said when abstaining."
    )
    merge_style: Literal["prose", "benchmark"] = Field(
        "prose",
        description="`benchmark`: a compound answer is the short answers of its parts with ` && ` "
        "between them, written by the model where its templates have `merge_benchmark.txt`.",
    )

    @property
    def invites_memory(self) -> bool:
        """Whether prompts over evidence may invite the model to answer from memory."""
        return self.no_evidence == "closed_book" or self.unsupported == "allow"
