"""The compose file describes a cluster that survives the loss of a broker, and has no secrets."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater.streams.kafka.jars import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.kafka.yml"
SECRETS = (
    "TERRA_SECRETS",
    "ADMIN_KEY",
    "READ_KEY",
    "WORKFLOW_KEY",
    "WORLD_KEY",
    "POSTGRES_PASSWORD",
)
OURS = ("topics", "migrate", "gateway", "worker", "workflows", "projector")
BROKERS = ("kafka-1", "kafka-2", "kafka-3")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    return services


def config(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What docker's own client makes of the file; skips where there is no client."""
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("docker's client is not installed")
    if subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker's client has no compose")
    return subprocess.run(
        [docker, "compose", "-f", COMPOSE_FILE, "--env-file", "/dev/null", "config", "--quiet"],
        env={name: os.environ[name] for name in ("PATH", "HOME")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_docker_accepts_the_file():
    checked = config({f"HEADWATER_{name}": "given" for name in SECRETS})
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("missing", SECRETS)
def test_docker_names_a_secret_that_is_missing(missing: str):
    checked = config({f"HEADWATER_{name}": "given" for name in SECRETS if name != missing})
    assert checked.returncode != 0
    assert f"HEADWATER_{missing}" in checked.stderr


def test_every_variable_is_required_and_says_what_it_is():
    text = "\n".join(
        line for line in COMPOSE_FILE.read_text().splitlines() if not line.startswith("#")
    )
    variables = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert {name for name, _ in variables} == {f"HEADWATER_{name}" for name in SECRETS}
    assert all(rest.startswith(":?set it to") for _, rest in variables)


def test_everything_is_published_on_loopback_alone(services: dict[str, Any]):
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports), "no port twice"


def test_a_record_is_written_when_two_of_three_brokers_have_it(services: dict[str, Any]):
    for broker in BROKERS:
        settings = services[broker]["environment"]
        assert settings["KAFKA_MIN_INSYNC_REPLICAS"] == 2
        assert settings["KAFKA_DEFAULT_REPLICATION_FACTOR"] == 3
        assert settings["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    voters = services["kafka-1"]["environment"]["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    assert voters == ",".join(f"{number}@kafka-{number}:9093" for number in (1, 2, 3))
    for name in OURS:
        assert services[name]["environment"]["HEADWATER_REPLICATION"] == 3
        assert services[name]["environment"]["HEADWATER_KAFKA"].count("kafka-") == 3


def test_brokers_differ_in_their_number_address_and_data(services: dict[str, Any]):
    for number, name in enumerate(BROKERS, 1):
        settings = services[name]["environment"]
        outside = services[name]["ports"][0].split(":")[1]
        assert settings["KAFKA_NODE_ID"] == number
        assert settings["KAFKA_ADVERTISED_LISTENERS"] == (
            f"INSIDE://{name}:9092,OUTSIDE://127.0.0.1:{outside}"
        )
        assert services[name]["volumes"] == [f"{name}:/var/lib/kafka/data"]


def test_parts_start_after_the_topics_and_tables_are_there(services: dict[str, Any]):
    done = {"condition": "service_completed_successfully"}
    for name in ("gateway", "worker", "workflows", "projector"):
        assert services[name]["depends_on"] == {"topics": done, "migrate": done}
    for name in ("topics", "migrate"):
        assert services[name]["restart"] == "no"
    assert services["worker"]["deploy"]["replicas"] == 2


def test_workflows_have_a_worker_whose_app_the_image_has(services: dict[str, Any]):
    command, _, app = services["workflows"]["command"]
    assert command == "worker"
    assert importlib.util.find_spec(app) is not None


def test_images_of_others_have_exact_tags_and_digests(services: dict[str, Any]):
    images = {service["image"] for service in services.values()} - {"headwater"}
    images |= set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    exact = re.compile(r"[a-z/-]+:v?\d+(\.\d+)+(-slim)?@sha256:[0-9a-f]{64}")
    assert len(images) > 3
    assert not [image for image in images if not exact.fullmatch(image)]


def test_the_cluster_is_of_the_embedded_versions(services: dict[str, Any]):
    images = [services[name]["image"].partition("@")[0] for name in ("kafka-1", "postgres")]
    assert images == [f"apache/kafka:{KAFKA_VERSION}", "postgres:18.4"]


def test_the_image_holds_every_package_and_is_not_roots():
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) /src/\1$", dockerfile, re.MULTILINE))
    rooms = {path.name for path in (ROOT / "src" / "headwater").iterdir() if path.is_symlink()}
    assert copied == rooms | {"src"}
    assert "--require-hashes" in dockerfile
    assert re.search(r"^USER [1-9]\d+$", dockerfile, re.MULTILINE)
