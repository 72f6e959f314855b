"""The chart renders what Kubernetes accepts, and the plain manifests, and keeps what
deploy/README.md promises."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

import service
from service.cli.serve import FLUSH_S
from tests.deploy.helm import (
    CHART,
    EXAMPLES,
    KUBERNETES,
    Object,
    made,
    named,
    objects,
    of_kind,
    pods,
    run_helm,
    template,
    values_of,
)
from tests.deploy.manifests import FOLDER, manifest

KEY = "secrets.values.gateway-keys=k"
BUDGET = "PodDisruptionBudget"
NO_SCHEMA = {"ServiceMonitor"}  # of the Prometheus operator, not of Kubernetes


@pytest.mark.parametrize("example", EXAMPLES)
def test_lint_finds_nothing(example: str) -> None:
    strict = ("--strict", "--kube-version", KUBERNETES)
    done = run_helm("lint", "deploy/helm", *strict, *values_of(example))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", ["1.27", "1.32", "1.37"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_fits_the_schema_of_kubernetes(example: str, version: str) -> None:
    found = objects(example)
    assert {"Deployment", "Service", "ConfigMap", "NetworkPolicy"} <= {o["kind"] for o in found}
    for each in found:
        if each["kind"] not in NO_SCHEMA:
            validate(each, version, strict=True)


def test_the_schema_check_can_fail() -> None:
    broken = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "x"},
        "spec": {"prots": 1},
    }
    with pytest.raises(Exception, match="prots"):
        validate(broken, "1.32", strict=True)


def test_the_service_monitor_selects_the_services_of_gateway_and_workers() -> None:
    found = objects("eight-gpus-lora")
    monitor = next(of_kind("ServiceMonitor", found))["spec"]
    assert monitor["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "15s"}]
    expression = monitor["selector"]["matchExpressions"][0]
    chosen = [
        each["metadata"]["name"]
        for each in of_kind("Service", found)
        if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        and each["metadata"]["labels"][expression["key"]] in expression["values"]
        and each["spec"]["ports"][0]["name"] == "http"
    ]
    assert chosen == ["revelator", "revelator-worker-default"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "the gateway needs API keys"),
        ([KEY, "gateway.replicas=2"], "both stores on servers"),
        ([KEY, "gateway.autoscaling.enabled=true"], "both stores on servers"),
        ([KEY, "workers.fast.model=m"], "no pool is called default"),
        ([KEY, "workers.default.gpus=1"], "workers.default.model"),
        ([KEY, "qdrant.mode=external"], "qdrant"),
        ([KEY, "gatway.replicas=1"], "gatway"),
        ([KEY, "settings.server.port=9000"], "port"),
        (["secrets.values.keys=k"], "secrets.values"),
    ],
)
def test_values_that_cannot_work_are_refused(options: list[str], said: str) -> None:
    done = template(*(word for option in options for word in ("--set", option)))
    assert done.returncode != 0
    assert said in done.stderr


def test_nothing_but_a_key_is_needed() -> None:
    found = made("--set", KEY)
    for each in found:
        validate(each, "1.32", strict=True)
    gateway = named("Deployment", "revelator", found)["spec"]
    assert (gateway["replicas"], gateway["strategy"]) == (1, {"type": "Recreate"})
    data = next(v for v in gateway["template"]["spec"]["volumes"] if v["name"] == "data")
    assert data["persistentVolumeClaim"]["claimName"] == "revelator-data"
    assert named("PersistentVolumeClaim", "revelator-data", found)
    assert named("Secret", "revelator", found)["stringData"] == {"gateway-keys": "k"}


def test_a_file_of_tenants_takes_the_place_of_keys() -> None:
    found = made("--set", "secrets.existing=own", "--set", "secrets.keys={tenants}")
    gateway = named("Deployment", "revelator", found)["spec"]["template"]["spec"]
    settings = next(v for v in gateway["volumes"] if v["name"] == "settings")
    sources = [each["secret"] for each in settings["projected"]["sources"] if "secret" in each]
    assert sources == [{"name": "own", "items": [{"key": "tenants", "path": "secrets/tenants"}]}]
    [file] = named("ConfigMap", "revelator", found)["data"].values()
    assert 'tenants_file = "/etc/revelator/secrets/tenants"' in file


def test_tokens_of_an_issuer_take_the_place_of_keys() -> None:
    oidc = {"issuer": "https://a", "audience": "b", "jwks_url": "https://login.example.com:8443/c"}
    found = made(*(f"--set=settings.server.oidc.{name}={value}" for name, value in oidc.items()))
    [file] = named("ConfigMap", "revelator", found)["data"].values()
    assert "[server.oidc]" in file
    egress = named("NetworkPolicy", "revelator", found)["spec"]["egress"]
    assert {"ports": [{"port": 8443}]} in egress


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_pod_can_write_to_its_image_become_root_or_hear_of_services(example: str) -> None:
    for name, pod in pods(objects(example)).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        # REVELATOR_PORT, which a service called revelator would set, is refused as no setting.
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            if not name.endswith("elasticsearch"):  # it makes a keystore among its files
                assert security["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("options", [(), ("--set", "settings.limits.timeout_s=240")])
def test_a_gateway_that_is_stopped_has_time_for_its_longest_question(
    example: str, options: tuple[str, ...]
) -> None:
    found = objects(example, *options)
    settings = settings_of(found)
    longest = settings.get("limits", {}).get("timeout_s", 60)
    assert settings["server"]["drain_s"] >= longest
    spec = pods(found)["revelator"]["spec"]
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    grace = spec["terminationGracePeriodSeconds"]
    assert grace > 5 + settings["server"]["drain_s"] + FLUSH_S


def settings_of(found: list[Object]) -> dict[str, Any]:
    return tomllib.loads(named("ConfigMap", "revelator", found)["data"]["revelator.toml"])


def test_a_worker_has_time_to_load_and_to_drain() -> None:
    spec = pods(objects("eight-gpus-lora"))["revelator-worker-default"]["spec"]
    container = spec["containers"][0]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 1800
    _, script, _, settle, drain = container["lifecycle"]["preStop"]["exec"]["command"]
    assert script == "/etc/revelator/drain.py"
    assert spec["terminationGracePeriodSeconds"] > int(settle) + int(drain)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_many_gpus_split_the_model_and_none_asks_for_no_gpu() -> None:
    split = pods(objects("one-gpu", "--set", "workers.default.gpus=4"))
    container = split["revelator-worker-default"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    at = container["command"].index("--tensor-parallel-size")
    assert container["command"][at + 1] == "4"
    cpu = pods(objects("cpu-trial"))["revelator-worker-default"]["spec"]["containers"][0]
    assert "nvidia.com/gpu" not in cpu["resources"]["limits"]
    assert "--tensor-parallel-size" not in cpu["command"]


def test_gateways_scale_by_a_metric_that_the_service_has() -> None:
    from service.core.metrics import Metrics

    found = objects("eight-gpus-lora")
    scaler = next(of_kind("HorizontalPodAutoscaler", found))["spec"]
    metric = scaler["metrics"][0]["pods"]["metric"]["name"]
    assert f"\n{metric} 0.0\n" in Metrics().render().decode()
    assert "replicas" not in named("Deployment", "revelator", found)["spec"]


@pytest.mark.parametrize("example", ["eight-gpus-lora", "gateway-only"])
def test_several_gateways_are_on_several_nodes_and_go_one_at_a_time(example: str) -> None:
    found = objects(example)
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind(BUDGET, found)}
    assert set(budgets) == {name for name in pods(found) if name.startswith("revelator")}
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        labels = pods(found)[name]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
    gateway = pods(found)["revelator"]
    spread = gateway["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"].rpartition("/")[2] for each in spread] == ["hostname", "zone"]
    for each in spread:
        chosen = each["labelSelector"]["matchLabels"].items()
        assert chosen <= gateway["metadata"]["labels"].items()
    strategy = named("Deployment", "revelator", found)["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_the_pool_looks_up_a_headless_service() -> None:
    found = objects("one-gpu")
    engine = settings_of(found)["engines"]["default"]
    assert engine["resolve"] is True
    host = engine["urls"][0].split("/")[2].split(":")[0]
    workers = named("Service", host, found)["spec"]
    assert workers["clusterIP"] == "None"
    pod = pods(found)[host]
    assert workers["selector"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("example", EXAMPLES)
def test_policies_let_the_gateway_reach_what_its_settings_name(example: str) -> None:
    found = objects(example)
    egress = named("NetworkPolicy", "revelator", found)["spec"]["egress"]
    ports = {port["port"] for rule in egress for port in rule["ports"]}
    settings = settings_of(found)
    urls = [url for engine in settings["engines"].values() for url in engine["urls"]]
    urls += [settings["retrieval"][f"{store}_url"] for store in ("elasticsearch", "qdrant")]
    grpc = settings["retrieval"].get("qdrant_grpc_port")
    assert (grpc == 6334) == (example in {"one-gpu", "cpu-trial"})  # where it is ours
    named_ports = {int(url.split(":")[2].split("/")[0]) for url in urls} | {53}
    assert named_ports | ({grpc} if grpc else set()) == ports


@pytest.mark.parametrize(
    ("server", "port"),
    [
        ("tracing.url=http://collector:4318", 4318),
        ("server.oidc.jwks_url=https://login.example.com:8443/certs", 8443),
        ("retrieval.embedding.url=http://embeddings:8081", 8081),
        ("retrieval.reranker.url=https://reranker.example.com", 443),
        ("engines.other.urls={http://elsewhere:8082/v1}", 8082),
    ],
)
def test_the_gateway_reaches_every_other_server_of_its_settings(server: str, port: int) -> None:
    found = objects("cpu-trial", "--set", f"settings.{server}")
    egress = named("NetworkPolicy", "revelator", found)["spec"]["egress"]
    assert {"ports": [{"port": port}]} in egress


@pytest.mark.parametrize("example", EXAMPLES)
def test_only_gateways_reach_workers_and_stores(example: str) -> None:
    found = objects(example)
    for name in set(pods(found)) - {"revelator"}:
        policy = named("NetworkPolicy", name, found)["spec"]
        peers = policy["ingress"][0]["from"]
        labels = peers[0]["podSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "gateway"
        assert all("namespaceSelector" in peer for peer in peers[1:])
        assert policy["podSelector"]["matchLabels"].items() <= (
            pods(found)[name]["metadata"]["labels"].items()
        )


def test_the_chart_is_of_the_services_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == service.__version__


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_manifest_is_what_the_chart_renders(example: str) -> None:
    written = (FOLDER / f"{example}.yaml").read_text(encoding="utf-8")
    assert written == manifest(example), "run `python -m tests.deploy.manifests`"


def test_each_manifest_has_its_example() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == EXAMPLES
