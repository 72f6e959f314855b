"""`revelator worker`: what it runs, one for each GPU, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.core.errors import ConfigurationError
from service.engines.vllm_command import lora_options, one_per_gpu, worker_command

ROOT = Path(__file__).parents[3]
# Stands in for vLLM's command line: says what it was given, and runs until it is told to end.
SERVES = """
import os, signal, sys
if "--fail" in sys.argv:
    sys.exit(3)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
def say(*words):  # a line is one write, or those of two processes mix
    os.write(1, (" ".join(words) + "\\n").encode())
say("serves", os.environ.get("CUDA_VISIBLE_DEVICES", "-"), *sys.argv[1:])
signal.sigwait({signal.SIGTERM, signal.SIGINT})
say("ends")
"""


def test_a_worker_for_each_gpu() -> None:
    workers = one_per_gpu(worker_command("m", ["--dtype", "half"], {}), ["0", "3"], 9000)

    assert [worker.variables["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "3"]
    assert [worker.command[-2:] for worker in workers] == [["--port", "9000"], ["--port", "9001"]]
    assert "CUDA_VISIBLE_DEVICES=3" in str(workers[1])


def test_adapters() -> None:
    assert lora_options([]) == []
    assert lora_options(["a=/x", "b=/y"]) == ["--enable-lora", "--lora-modules", "a=/x", "b=/y"]
    with pytest.raises(ConfigurationError, match="NAME=PATH"):
        lora_options(["/x"])


def adapter(folder: Path, config: str, template: str | None = None) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(config)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return f"{folder.name}={folder}"


@pytest.mark.parametrize(("rank", "most"), [(8, "8"), (17, "32"), (300, "320"), (600, "600")])
def test_vllm_is_told_the_largest_rank_of_the_adapters(
    tmp_path: Path, rank: int, most: str
) -> None:
    small = adapter(tmp_path / "small", '{"r": 4}')
    large = adapter(tmp_path / "large", f'{{"r": {rank}}}')

    options = lora_options([small, large, "of-a-hub=somebody/adapter"])

    assert options[options.index("--max-lora-rank") + 1] == most


def test_the_chat_template_that_all_adapters_were_trained_with_is_used(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", '{"r": 4}', "turns")
    same = adapter(tmp_path / "same", '{"r": 4}', "turns")
    other = adapter(tmp_path / "other", '{"r": 4}', "others")
    bare = adapter(tmp_path / "bare", '{"r": 4}')

    assert lora_options([one, same])[-2:] == [
        "--chat-template", str(tmp_path / "one" / "chat_template.jinja")
    ]  # fmt: skip
    for adapters in ([one, other], [one, bare], [bare]):
        assert "--chat-template" not in lora_options(adapters)


@pytest.mark.parametrize("config", ["{", "[]", '{"r": null}', "{}"])
def test_an_adapter_without_a_rank_is_refused(tmp_path: Path, config: str) -> None:
    with pytest.raises(ConfigurationError, match="has no rank"):
        lora_options([adapter(tmp_path / "a", config)])


@pytest.fixture
def fake_vllm(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(SERVES)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def run(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "service", "worker", "m", *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_start_say_what_runs_and_end_together(
    fake_vllm: dict[str, str], number: signal.Signals
) -> None:
    with run(fake_vllm, "--gpus", "0,1", "--port", "9000", "--dtype", "half") as process:
        assert process.stdout is not None
        said: list[str] = []
        while sum(line.startswith("serves") for line in said) < 2:
            said.append(process.stdout.readline())
            assert said[-1], said
        process.send_signal(number)
        rest = process.stdout.read()

    served = sorted(line.split()[1:4:2] + line.split()[-2:] for line in said if "serves" in line)
    assert [line[0] for line in served] == ["0", "1"]
    assert [line[-1] for line in served] == ["9000", "9001"]
    assert rest.count("ends\n") == 2
    assert process.returncode == 0


def test_a_signal_while_workers_start_ends_them_all(fake_vllm: dict[str, str]) -> None:
    """Whether it finds the first of them started, or the last."""
    with run(fake_vllm, "--gpus", "0,1,2,3") as process:
        assert process.stdout is not None
        assert "CUDA_VISIBLE_DEVICES=0" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()

    assert output.count("ended with") == 4
    assert process.returncode in (0, -signal.SIGTERM % 256)


def test_one_that_fails_is_told_and_leaves_its_code(fake_vllm: dict[str, str]) -> None:
    with run(fake_vllm, "--gpus", "0", "--fail") as process:
        output, _ = process.communicate(timeout=200)

    assert process.returncode == 3
    assert "ended with exit code 3" in output


def test_a_single_worker_becomes_vllm_itself(fake_vllm: dict[str, str]) -> None:
    with run(fake_vllm, "--port", "9000", "--fail", "--lora", "a=/x") as process:
        output, _ = process.communicate(timeout=200)

    assert process.returncode == 3
    assert "--enable-lora --lora-modules a=/x" in output
    assert "--port 9000" in output
