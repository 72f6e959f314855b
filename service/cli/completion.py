"""`revelator completion` prints the script that completes commands and options in a shell."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal

import typer

ASKED: Final = (
    "_REVELATOR_COMPLETE"  # environment variable by which the script requests completions
)


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(help="Shell that the script is for.")
    ],
) -> None:
    """Print a script that completes commands and options.

    bash: save it in ~/.local/share/bash-completion/completions/revelator. zsh: save it as
    _revelator in a folder of $fpath. fish: save it in ~/.config/fish/completions/revelator.fish.
    """
    from typer import completion as shells  # noqa: PLC0415

    typer.echo(
        shells.get_completion_script(  # type: ignore[attr-defined]  # nosec B604 (a shell's name)
            prog_name="revelator", complete_var=ASKED, shell=shell
        )
    )


def prepare_completion() -> None:
    """Register the shells if this process was started to complete a line."""
    if ASKED in os.environ:
        from typer import completion as shells  # noqa: PLC0415

        shells.completion_init()  # type: ignore[attr-defined]
