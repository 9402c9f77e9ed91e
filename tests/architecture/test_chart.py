"""The Helm chart has values, settings and secrets that exist, and manifests that Kubernetes takes.

Rendering needs `helm`; what the templates name is checked without it.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from headwater.gateway.settings.settings import PREFIX, Settings

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "headwater"
TEMPLATES = CHART / "templates"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
VARIABLE = re.compile(r"\bHEADWATER_[A-Z0-9_]+\b")
KUBERNETES = "1.33"
#: A helm that `go install` has built takes an old version for the cluster's.
VERSION = ("--kube-version", f"{KUBERNETES}.0")
#: The keys of the secret that each template uses.
SECRETS = {
    "gateway.yaml": {
        "terraSecrets",
        "adminKey",
        "readKey",
        "workflowKey",
        "worldKey",
        "postgresGateway",
    },
    "pipeline.yaml": set(),
    "workflows.yaml": {"postgresWorker"},
    "projector.yaml": {"postgresProjector"},
    "migration.yaml": {"postgresMigrate"},
    "scaling.yaml": {"kafkaPassword"},
    "_helpers.tpl": {"kafkaPassword"},
}
#: Sets of values that reach every branch of the templates.
RENDERED: dict[str, dict[str, Any]] = {
    "least": {"kafka": {"brokers": "kafka:9092"}},
    "most": {
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "project": "acme",
        "postgresSchema": "acme",
        "kafka": {
            "brokers": "kafka-1:9093,kafka-2:9093",
            "tls": {
                "enabled": True,
                "existingSecret": "kafka-tls",
                "clientCertificate": True,
                "checkHostname": False,
            },
            "sasl": {"mechanism": "SCRAM-SHA-512", "user": "headwater"},
        },
        "postgres": {"tls": {"existingSecret": "postgres-tls"}},
        "podAnnotations": {"team": "data"},
        "podLabels": {"team": "data"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "data", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "extraVolumes": [{"name": "rules", "configMap": {"name": "rules"}}],
        "extraVolumeMounts": [{"name": "rules", "mountPath": "/etc/headwater/rules"}],
        "serviceAccount": {"annotations": {"role": "headwater"}},
        "gateway": {
            "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
            "allowedHosts": ["headwater.example"],
            "trustedProxies": ["10.0.0.0/8"],
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "headwater.example",
                "tlsSecret": "tls",
            },
            "blobs": {"existingClaim": "files"},
        },
        "pipeline": {
            "autoscaling": {"enabled": True, "maxReplicas": 60},
            "state": {"storageClassName": "fast"},
        },
        "workflows": {"apps": ["a.flows", "b.flows"], "autoscaling": {"enabled": True}},
        "projector": {"podDisruptionBudget": {"enabled": True}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"enabled": True, "gatewayFrom": [{"namespaceSelector": {}}]},
    },
    "fewest": {
        "kafka": {"brokers": "kafka:9092"},
        "workflows": {"enabled": False},
        "migration": {"enabled": False},
        "serviceAccount": {"create": False},
        "gateway": {"drainSeconds": 0, "podDisruptionBudget": {"enabled": False}},
        "spread": False,
    },
}


def with_changes(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Values with some changed, as Helm merges them."""
    merged = dict(values)
    for name, value in changes.items():
        is_nested = isinstance(value, dict) and isinstance(values.get(name), dict)
        merged[name] = with_changes(values[name], value) if is_nested else value
    return merged


def texts() -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(TEMPLATES.iterdir())}


# -- without helm


@pytest.mark.parametrize("changes", RENDERED.values(), ids=RENDERED)
def test_values_are_those_of_the_schema(changes: dict[str, Any]):
    values = with_changes(VALUES, changes)
    assert not [error.message for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(values)]


@pytest.mark.parametrize(
    "changes",
    [
        {"gatway": {}},
        {"gateway": {"replica": 3}},
        {"kafka": {"brokers": "kafka"}},
        {"kafka": {"sasl": {"mechanism": "GSSAPI"}}},
        {"topicPrefix": "acme"},
        {"settings": {"LOG_LEVEL": "info"}},
        {"workflows": {"apps": []}},
        {"pipeline": {"terminationGracePeriodSeconds": 5}},
    ],
    ids=str,
)
def test_the_schema_refuses_other_values(changes: dict[str, Any]):
    assert not jsonschema_rs.validator_for(SCHEMA).is_valid(with_changes(VALUES, changes))


def test_every_value_of_the_schema_has_a_default():
    def named(schema: dict[str, Any], path: str = "") -> Iterator[str]:
        for name, value in schema.get("properties", {}).items():
            yield f"{path}{name}"
            yield from named(value, f"{path}{name}.")

    def written(values: dict[str, Any], path: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield f"{path}{name}"
            if isinstance(value, dict):
                yield from written(value, f"{path}{name}.")

    # Helm itself sets `global`.
    assert set(named(SCHEMA)) - set(written(VALUES)) <= {"global", "migration.resources.limits"}


def test_every_variable_is_a_setting():
    named = {
        variable
        for text in (*texts().values(), (CHART / "values.yaml").read_text())
        for variable in VARIABLE.findall(text)
    }
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    assert named - settings == set()
    assert f"{PREFIX}MEMBER" in named


def test_every_included_template_is_defined():
    used = {name for text in texts().values() for name in re.findall(r'include "([^"]+)"', text)}
    defined = set(re.findall(r'define "([^"]+)"', texts()["_helpers.tpl"]))
    assert used == defined


def test_a_process_has_no_more_secrets_than_it_needs():
    keys = set(VALUES["secrets"]["keys"])
    used = {
        name: {key for key in keys if re.search(rf"\b{key}\b", text)}
        for name, text in texts().items()
    }
    assert {name: named for name, named in used.items() if named} == {
        name: named for name, named in SECRETS.items() if named
    }
    assert set().union(*used.values()) == keys


def test_the_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHART.parents[2] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project


# -- with helm


def helm(*arguments: str) -> str:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed; docs/kubernetes.md says how to install it")
    done = subprocess.run(
        [found, *arguments, *VERSION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(params=RENDERED)
def manifests(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(RENDERED[request.param]))
    rendered = helm("template", "headwater", str(CHART), "--namespace", "data", "-f", str(values))
    return [manifest for manifest in yaml.safe_load_all(rendered) if manifest]


def pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specifications of pods by their component."""
    return {
        manifest["metadata"]["labels"]["app.kubernetes.io/component"]: manifest["spec"]["template"][
            "spec"
        ]
        for manifest in manifests
        if "template" in manifest.get("spec", {})
    }


def test_helm_finds_no_problem(tmp_path: Path):
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(RENDERED["most"]))
    helm("lint", "--strict", str(CHART), "-f", str(values))


def test_helm_names_what_is_missing():
    found = shutil.which("helm") or pytest.skip("helm is not installed")
    done = subprocess.run(
        [found, "template", CHART, *VERSION], capture_output=True, text=True, check=False
    )
    assert "kafka.brokers" in done.stderr


def test_kubernetes_accepts_every_manifest(manifests: list[dict[str, Any]]):
    validator = pytest.importorskip("kubernetes_validate")
    kinds = set()
    for manifest in manifests:
        kinds.add(manifest["kind"])
        if manifest["apiVersion"].split("/")[0] in ("keda.sh", "monitoring.coreos.com"):
            continue  # Their schemas are those of other projects.
        validator.validate(manifest, KUBERNETES, strict=True)
    assert {"Deployment", "StatefulSet", "Service"} <= kinds
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)


def test_pods_have_no_rights(manifests: list[dict[str, Any]]):
    for component, pod in pods(manifests).items():
        assert pod["securityContext"]["runAsNonRoot"], component
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            # A limit of CPU would throttle heartbeats.
            assert "cpu" not in container["resources"]["limits"]


def test_processes_are_probed_and_stop_in_order(manifests: list[dict[str, Any]]):
    for component, pod in pods(manifests).items():
        if component == "migration":
            continue
        (container,) = pod["containers"]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        assert pod["terminationGracePeriodSeconds"] >= 30


def test_selectors_find_the_pods_of_one_component(manifests: list[dict[str, Any]]):
    templates = [
        manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in manifests
        if "template" in manifest.get("spec", {})
    ]
    for manifest in manifests:
        selector = manifest.get("spec", {}).get("selector")
        if not selector or manifest["kind"] == "ServiceMonitor":
            continue
        labels = selector.get("matchLabels", selector)
        assert sum(labels.items() <= pod.items() for pod in templates) == 1, manifest["metadata"]


def test_scaling_reads_the_groups_of_the_project():
    values = ["kafka.brokers=kafka:9092", "pipeline.autoscaling.enabled=true", "kafka.partitions=4"]
    sets = [word for value in values for word in ("--set", value)]
    for more, prefix in (
        ([], ""),
        (["--set", "project=acme"], "acme."),
        (["--set", "topicPrefix=team-"], "team-"),
    ):
        rendered = helm("template", "hw", str(CHART), *sets, *more, "-s", "templates/scaling.yaml")
        (scaled,) = yaml.safe_load_all(rendered)
        metadata = scaled["spec"]["triggers"][0]["metadata"]
        assert metadata["consumerGroup"] == f"{prefix}headwater"
        assert metadata["topic"] == f"{prefix}webhooks"
        assert scaled["spec"]["maxReplicaCount"] == 4
