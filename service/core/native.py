"""The boundary of native calls.

Extensions in Rust (tantivy, qdrant-edge, tokenizers) raise `PanicException` where their code
panics, for example on a damaged file. It is no `Exception`: it would pass every handler and end
whatever runs beside the call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from anyio import to_thread

from service.core.errors import RevelatorError, StoreError

_MODULE: Final = "pyo3_runtime"  # each extension has its own class, but all name this module

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class OnDisk(Protocol):
    """A store in the files of a folder."""

    @property
    def backend(self) -> str: ...

    @property
    def folder(self) -> Path: ...


Store = TypeVar("Store", bound=OnDisk)


def is_failure(error: BaseException) -> bool:
    """Whether something failed, by an exception or a panic, and was not cancelled or ended."""
    return isinstance(error, Exception) or type(error).__module__ == _MODULE


@contextmanager
def native(store: OnDisk, kind: type[RevelatorError] = StoreError) -> Iterator[None]:
    """Make an error of this kind of whatever native calls of a store raise."""
    try:
        yield
    except RevelatorError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise kind(
            f"{store.backend} failed on the files in {store.folder}: {error}; if they are damaged, "
            "revelator check --collection NAME --repair rebuilds them"
        ) from error


def native_call(
    method: Callable[Concatenate[Store, Arguments], Result],
) -> Callable[Concatenate[Store, Arguments], Coroutine[Any, Any, Result]]:
    """Run a method of a store in a worker thread, and let it pass `native`. A caller that is
    cancelled meanwhile waits for its end."""

    @wraps(method)
    async def bounded(store: Store, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with native(store):
            return await to_thread.run_sync(lambda: method(store, *args, **kwargs))

    return bounded
