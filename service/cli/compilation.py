"""The command `revelator compile`; its dependencies are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.options import fail
from service.core.errors import RevelatorError
from service.core.extras import lacking


def compile_model(
    source: Annotated[Path, typer.Argument(help="Folder of a Llama model with float weights.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    version: Annotated[str, typer.Option(help="Version of the model, for its card.")] = "1",
    base_model: Annotated[
        str,
        typer.Option(
            help="Name of the model that it was trained from, for its card. Default: the name of "
            "SOURCE.",
            show_default=False,
        ),
    ] = "",
    bits: Annotated[
        Literal["4", "8"], typer.Option(help="Number of bits of a weight in the layers.")
    ] = "4",
    word_bits: Annotated[
        Literal["4", "8"], typer.Option(help="Number of bits of a weight in the embeddings.")
    ] = "8",
    products: Annotated[
        Literal["integer", "float"],
        typer.Option(
            help="Type of the matrix products. `float` is closer to the unquantised model."
        ),
    ] = "integer",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="File written by `synthesize`. Rounding to 4 bits minimises the error on its rows."
        ),
    ] = None,
) -> None:
    """Quantise a Llama model into a folder that engines of kind `embedded` serve, without torch."""
    try:
        from service.workshop.compilation.folder import compile_folder  # noqa: PLC0415
        from service.workshop.compilation.llama import (  # noqa: PLC0415
            FLOAT_PRODUCTS,
            INT8_PRODUCTS,
        )

        compile_folder(
            source,
            out,
            version=version,
            base_model=base_model or source.name,
            bits=4 if bits == "4" else 8,
            word_bits=4 if word_bits == "4" else 8,
            level=INT8_PRODUCTS if products == "integer" else FLOAT_PRODUCTS,
            calibration=calibrate,
        )
    except ModuleNotFoundError as error:
        fail(lacking("compile", error, "train"))
    except RevelatorError as error:
        fail(error.detail)
    size = sum(path.stat().st_size for path in out.iterdir())
    typer.echo(f'{out}: {size / 1e6:.1f} MB; serve it with kind = "embedded"')
