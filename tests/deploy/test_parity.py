"""Chart, compose file, Dockerfiles and service speak of the same settings, paths and ports."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from service.cli.serve import FLUSH_S
from service.core.settings import Settings, load_settings
from service.core.settings.loading import PREFIX
from service.engines import vllm as probe
from tests.deploy.compose import services
from tests.deploy.helm import CHART, EXAMPLES, ROOT, Object, named, objects, pods
from tests.deploy.images import FOLDER, image, instructions

MOUNT = "/etc/revelator"
KEY = "secret"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def mounted(found: list[Object]) -> Iterator[str]:
    """Paths of the files of Secrets, as the gateway sees them."""
    volumes = pods(found)["revelator"]["spec"]["volumes"]
    settings = next(each["projected"] for each in volumes if each["name"] == "settings")
    for source in settings["sources"]:
        for item in source.get("secret", {}).get("items", ()):
            yield f"{MOUNT}/{item['path']}"


def unpacked(found: list[Object], folder: Path) -> Path:
    """The gateway's /etc/revelator in a folder; where its settings file is."""
    for path in mounted(found):
        file = folder / path.removeprefix(f"{MOUNT}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(KEY, encoding="utf-8")
    text = named("ConfigMap", "revelator", found)["data"]["revelator.toml"]
    config = folder / "revelator.toml"
    config.write_text(text.replace(MOUNT, str(folder)), encoding="utf-8")
    return config


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_settings_that_the_chart_writes_are_the_services(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = objects(example)
    container = pods(found)["revelator"]["spec"]["containers"][0]
    for variable in [*container.get("env", ()), *image_variables("Dockerfile")]:
        if variable["name"].startswith(PREFIX):
            monkeypatch.setenv(variable["name"], variable["value"])
    settings = load_settings(unpacked(found, tmp_path))
    assert [key.get_secret_value() for key in settings.server.keys] == [KEY]
    assert settings.server.host == "0.0.0.0"
    assert (settings.retrieval.elasticsearch_url, settings.retrieval.qdrant_url) != (None, None)
    assert container["ports"] == [{"name": "http", "containerPort": settings.server.port}]
    assert {settings.engines[role.engine].kind for role in roles(settings)} == {"vllm"}


def roles(settings: Settings) -> list[Any]:
    return list(settings.effective_roles.values())


def image_variables(name: str) -> list[dict[str, str]]:
    return [{"name": key, "value": value} for key, value in image(name).variables.items()]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_secret_that_is_mounted_is_read_and_the_other_way_round(example: str) -> None:
    found = objects(example)
    text = named("ConfigMap", "revelator", found)["data"]["revelator.toml"]
    files = {value for value in text.split('"') if value.startswith(MOUNT)}
    assert files == set(mounted(found))


@pytest.mark.parametrize("example", EXAMPLES)
def test_roles_name_adapters_that_the_workers_have(example: str, tmp_path: Path) -> None:
    found = objects(example)
    settings = load_settings(unpacked(found, tmp_path))
    workers = [pod for name, pod in pods(found).items() if "-worker-" in name]
    words = [word for pod in workers for word in pod["spec"]["containers"][0]["command"]]
    served = {words[at + 1].split("=")[0] for at, word in enumerate(words) if word == "--lora"}
    assert {role.model for role in roles(settings) if role.model} == served


@cache
def routes() -> Any:
    text = (ROOT / "openapi.yaml").read_text(encoding="utf-8")
    return yaml.load(text, yaml.CSafeLoader)["paths"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_gateways_probes_are_routes_of_the_service(example: str) -> None:
    container = pods(objects(example))["revelator"]["spec"]["containers"][0]
    probed = {}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[kind]["httpGet"]
        assert probe["port"] == "http"
        assert "get" in routes()[probe["path"]]
        probed[kind] = probe["path"]
    assert list(probed.values()) == ["/startupz", "/readyz", "/healthz"]


def test_the_workers_probes_are_at_the_port_and_path_that_the_pool_asks() -> None:
    container = pods(objects("one-gpu"))["revelator-worker-default"]["spec"]["containers"][0]
    port = int(container["command"][container["command"].index("--port") + 1])
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert container["lifecycle"]["preStop"]["exec"]["command"][2] == str(port)
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")}
    assert paths == {"/health"}
    assert '/health"' in Path(probe.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "user", "command"),
    [
        ("Dockerfile", "10001", ["revelator", "serve"]),
        ("worker.Dockerfile", "10001", ["revelator", "worker"]),
    ],
)
def test_images_fit_the_pods_that_run_them(file: str, user: str, command: list[str]) -> None:
    made = image(file)
    assert made.command == command
    assert made.said["USER"] == user
    assert made.said["EXPOSE"] == "8000"
    name = "revelator-worker-default" if "worker" in file else "revelator"
    spec = pods(objects("one-gpu"))[name]["spec"]
    assert spec["securityContext"]["runAsUser"] == int(user)
    assert spec["containers"][0]["command"][:2] == command
    writable = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    homes = {value for key, value in made.variables.items() if key != "PATH" and value[0] == "/"}
    assert all(any(f"{home}/".startswith(f"{path}/") for path in writable) for home in homes)


@pytest.mark.parametrize(("model", "kind"), [("", "local"), ("your/instruct-model", "vllm")])
def test_compose_gives_settings_of_the_service(
    model: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = services(GATEWAY_KEY="k", MODEL=model)["gateway"]
    default = Settings().engines["default"].kind
    for name, value in {**image("Dockerfile").variables, **gateway["environment"]}.items():
        if name.startswith(PREFIX):
            monkeypatch.setenv(name, value)
    settings = load_settings()
    engine = settings.engines["default"]
    assert engine.kind == (kind if model else default)
    assert engine.urls == (["http://worker:8000/v1"] if model else [])
    assert (engine.model or "") == model
    assert [key.get_secret_value() for key in settings.server.keys] == ["k"]
    assert settings.server.drain_s >= settings.limits.timeout_s
    grace = int(gateway["stop_grace_period"].removesuffix("s"))
    assert grace > settings.server.drain_s + FLUSH_S


@pytest.mark.parametrize("profile", ["gpu", "cpu"])
def test_a_profile_of_compose_starts_the_worker_that_the_gateway_calls(profile: str) -> None:
    found = services(GATEWAY_KEY="k", MODEL="your/instruct-model")
    started = {name for name, each in found.items() if each.get("profiles") == [profile]}
    assert started == {f"worker-{profile}"}
    worker = found[f"worker-{profile}"]
    assert worker["networks"] == {"workers": {"aliases": ["worker"]}}
    model, option, drain_s = worker["command"]
    assert (model, option) == ("your/instruct-model", "--shutdown-timeout")
    assert int(drain_s) >= Settings().limits.timeout_s  # as long as the longest question
    assert int(worker["stop_grace_period"].removesuffix("s")) >= int(drain_s) + 30
    waited = found["gateway"]["depends_on"][f"worker-{profile}"]  # so the gateway stops first
    assert waited == {"condition": "service_started", "required": False}
    assert "stop_signal" not in worker  # vLLM drains at SIGTERM, which is the default
    assert "workers" in found["gateway"]["networks"]
    assert (ROOT / worker["build"]["dockerfile"]).is_file()


def test_compose_refuses_to_start_without_a_key() -> None:
    with pytest.raises(KeyError, match="GATEWAY_KEY"):
        services()


def test_compose_and_chart_run_the_same_stores() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    found = services(GATEWAY_KEY="k")
    for store in ("elasticsearch", "qdrant"):
        tag = values[store]["image"].rsplit(":", 1)[1].removesuffix("-unprivileged")
        assert found[store]["image"].rsplit(":", 1)[1] == tag


def test_the_gateways_image_has_no_torch() -> None:
    words = [rest for name, rest in instructions(FOLDER / "Dockerfile") if name == "ARG"]
    asked = dict(word.split("=", 1) for word in words)["EXTRAS"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chosen = [*extras["dependencies"]]
    for extra in asked.split(","):
        chosen += extras["optional-dependencies"][extra]
    names = {re.split(r"[^\w.-]", each)[0].lower() for each in chosen}
    assert names.isdisjoint({"revelator", "torch", "transformers", "vllm", "sentence-transformers"})
    assert "onnxruntime" in names


def test_both_worker_images_have_one_version_of_vllm() -> None:
    text = (ROOT / "deploy" / "docker" / "worker.Dockerfile").read_text(encoding="utf-8")
    gpu = text.split("ARG BASE=")[1].split()[0]
    cpu = services(GATEWAY_KEY="k")["worker-cpu"]["build"]["args"]["BASE"]
    assert gpu.split(":")[1] == cpu.split(":")[1]


DOCKERFILES = sorted(path.name for path in FOLDER.glob("*Dockerfile"))


def sources(name: str) -> list[str]:
    """The paths that a Dockerfile copies from the build context."""
    copied = [rest.split() for word, rest in instructions(FOLDER / name) if word == "COPY"]
    return [path for words in copied if words[0][:7] != "--from=" for path in words[:-1]]


def context() -> set[str]:
    """The paths that `.dockerignore`, which ignores everything first, takes back."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and line[0] != "#"]
    assert rules[0] == "*"
    return {line[1:] for line in rules if line[0] == "!"}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_is_in_the_context(name: str) -> None:
    assert sources(name)
    assert set(sources(name)) <= context()
    assert all((ROOT / path).exists() for path in sources(name))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_package_can_be_built_of_what_is_copied(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for path in (project["readme"], *project["license-files"]):
        assert str(PurePosixPath(path)) in sources(name)
