"""What the READMEs show is done: commands in their order in one folder, beside one server with
nothing configured; requests are sent. What comes later needs what came before it, so the module is
run as a whole. Settings in the documents are tested by tests/unit/test_samples.py.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from service.api.tenants import read_tenants
from service.evaluation.datasets import load_file
from tests.conftest import need
from tests.live.test_from_nothing import ASK_S, Server, served
from tests.support.commands import blocks, inline, shell_lines
from tests.support.office import pdf

ROOT = Path(__file__).parents[2]
README, DEPLOYING = ROOT / "README.md", ROOT / "deploy" / "README.md"
DOCUMENTS = [README, DEPLOYING]
WRITTEN_FOR = "http://127.0.0.1:8000"

# Commands that cannot run here, by their beginnings, with what stands in for them.
NOT_RUN: Final = {
    "pip install": "installs from a package index: .ci/run installs these extras",
    "pytest": "this is pytest",
    "revelator serve": "does not end: it is the server of this module",
    "revelator worker": "needs vLLM: tests/integration/test_vllm.py",
    "revelator synthesize": "needs a large teacher: see tests/live/test_synthesizing.py",
    "revelator train": "needs a large model: see tests/live/test_training.py",
    "docker build": "needs a container engine: see tests/deploy/test_parity.py",
    "GATEWAY_KEY=choose-one": "needs a container engine: see tests/deploy/test_parity.py",
    "helm install": "needs a cluster: tests/deploy/test_chart.py renders the chart",
    "kubectl": "needs a cluster: tests/deploy/test_chart.py reads the manifests",
    "(printf": "needs a cluster: a test below makes the object",
}
PROGRAMS = {"revelator", "python", "curl"}
NEEDED: Final = {"revelator ingest handbook.pdf": ("pypdf", "pdfplumber", "mammoth", "selectolax")}
PRINTED: Final = {  # what must be in the output, by the beginnings of commands
    'revelator ask "How many days of leave': "26 days",
    "revelator chat": "Jonas Pell",
    "revelator search": "26 days of paid leave",
    "revelator ingest handbook.pdf": "4 documents indexed, 0 unchanged, 0 failed",
    "revelator ingest docs/*.md": "1 documents indexed, 2 unchanged, 0 failed",
    "revelator evaluate": "accuracy",
    "curl http://127.0.0.1:8000/answer -H": '"answer":"20 September 1966"',
    "curl -X PUT http://127.0.0.1:8000/collections/default": '"state":"complete"',
    "curl http://127.0.0.1:8000/collections/default/documents": '"failed":[]',
    "revelator explain": "the answer is right",
    "revelator check --collection": "manifest and stores agree",
    "revelator collections list": "default",
    "revelator key": "shown only once",
}
HANDBOOK = """# Tallgrass Instruments: handbook

Tallgrass Instruments makes soil sensors in Ames.

## Leave

Every employee has 26 days of paid leave a year. The help desk is led by Jonas Pell.
"""
TYPED = "Who leads the help desk?\n\n"  # what a person types where a command asks


class Desk:
    """A folder with what the documents speak of, a server, and a shell that knows `revelator`."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        (folder / "docs").mkdir()
        (folder / "docs" / "leave.md").write_text(HANDBOOK, encoding="utf-8")
        (folder / "handbook.pdf").write_bytes(pdf(["Sensors are made in Ames.", "Page two."]))
        fact = {"id": "zorblax", "title": "Zorblax", "text": "Zorblax is a film by Ina Bergmann."}
        (folder / "facts.jsonl").write_text(json.dumps(fact), encoding="utf-8")
        question = {"question": "Who leads the help desk?", "answer": "Jonas Pell"}
        (folder / "questions.jsonl").write_text(json.dumps(question), encoding="utf-8")
        programs = folder / "bin"
        programs.mkdir()
        for name, words in {"revelator": "-m service", "python": ""}.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            program.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self.environment = server.environment | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def run(self, line: str) -> str:
        """Run a command line in the shell, and return its output. Fails if the command does."""
        if line.startswith("revelator evaluate"):  # as the README says for a running server
            line += f" --url {self.server.url}"
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", line.replace(WRITTEN_FOR, self.server.url)],
            cwd=self.folder, env=self.environment, input=TYPED, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3 * ASK_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with served(tmp_path_factory.mktemp("data")) as server:
        yield Desk(tmp_path_factory.mktemp("desk"), server)


def beginning(line: str, table: Any) -> str | None:
    """The entry of a table that a line begins with."""
    return next((each for each in table if line.startswith(each)), None)


LINES = [line for document in DOCUMENTS for line in shell_lines(document)]
RUN = [line for line in LINES if not beginning(line, NOT_RUN)]
# Another processor rounds a confidence otherwise.
COST = re.compile(
    r"^(\d+ retrievals, \d+ engine calls), [\d.]+ s(, stopped by \w+, confidence)? ?\d*%?", re.M
)


@pytest.mark.parametrize("line", RUN)
def test_a_command(desk: Desk, line: str) -> None:
    assert line.split(maxsplit=1)[0] in PROGRAMS, "run it here, or say in NOT_RUN why it cannot run"
    if lacking := beginning(line, NEEDED):
        need(*NEEDED[lacking])
    printed = desk.run(line)
    if expected := beginning(line, PRINTED):
        assert PRINTED[expected] in printed
    if shown := [text for text in blocks(README, "console") if text.startswith(f"$ {line}\n")]:
        assert COST.sub(r"\1\2", printed) == COST.sub(r"\1\2", shown[0].partition("\n")[2])


def test_the_tables_name_commands_of_the_documents() -> None:
    for table in (NOT_RUN, PRINTED, NEEDED):
        assert not [each for each in table if not any(line.startswith(each) for line in LINES)]
    assert len(RUN) > 15


def test_the_tenants_that_were_made_are_valid(desk: Desk) -> None:
    crawler = read_tenants(desk.folder / "tenants.toml")[-1]
    assert (crawler.name, crawler.collections) == ("crawler", ["docs"])


def test_what_is_piped_to_a_cluster_is_an_object() -> None:
    made = [line for line in LINES if line.startswith("(")]
    for line in made:
        text = subprocess.run(
            ["bash", "-ec", line.partition(" | kubectl")[0]], cwd=ROOT, capture_output=True,
            check=True, timeout=200,
        ).stdout  # fmt: skip
        found = yaml.safe_load(text)
        assert found["kind"] == "PrometheusRule"
        assert found["spec"]["groups"]
    assert made


@pytest.mark.parametrize("text", list(blocks(DEPLOYING, "python")), ids=["client", "openai"])
async def test_python(desk: Desk, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Statements at the top may wait, as in a notebook."""
    if "openai" in text:
        need("openai")
    text = text.replace(WRITTEN_FOR, desk.server.url)
    code = compile(text, "deploy/README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(code, {})
    if inspect.isawaitable(waiting):
        await waiting
    assert "20 September 1966" in capsys.readouterr().out


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ASK_S) as response:
        return json.load(response)


@pytest.mark.parametrize("text", [each for each in inline(README) if each.startswith("{")])
def test_json(desk: Desk, text: str) -> None:
    """A body of `POST /answer` or `/search`, a line of a file of questions, or fields that go with
    a chat. An ellipsis stands for a text."""
    sent = json.loads(text.replace("…", "Who leads the help desk?"))
    if "answer" in sent:
        (desk.folder / "one.jsonl").write_text(text, encoding="utf-8")
        assert load_file(desk.folder / "one.jsonl")[0][0].question == "…"
        return
    if "question" in sent:
        assert post(f"{desk.server.url}/answer", sent)["answer"] == "Jonas Pell"
        return
    if "query" in sent:
        found = post(f"{desk.server.url}/search", sent)["passages"]
        assert any("The help desk is led by Jonas Pell." in each["text"] for each in found)
        return
    question = {"role": "user", "content": "Who leads the help desk?"}
    body = {"model": "revelator", "messages": [question], **sent}
    said = post(f"{desk.server.url}/v1/chat/completions", body)["choices"][0]["message"]
    assert said["content"].startswith("Jonas Pell [1]\n")
    assert "The help desk is led by Jonas Pell." in said["content"]
