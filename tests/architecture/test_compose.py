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

from headwater.projections.postgres.roles import ROLES
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
    "MIGRATE_PASSWORD",
    "GATEWAY_PASSWORD",
    "PROJECTOR_PASSWORD",
    "WORKER_PASSWORD",
    "VIEWER_PASSWORD",
)
KEYS = ("TERRA_SECRETS", "ADMIN_KEY", "READ_KEY", "WORKFLOW_KEY", "WORLD_KEY")
#: The secrets that each part has, and the login of it in Postgres.
SECRETS_OF = {
    "topics": (),
    "migrate": ("MIGRATE_PASSWORD",),
    "gateway": (*KEYS, "GATEWAY_PASSWORD"),
    "worker": (),
    "workflows": ("WORKER_PASSWORD",),
    "projector": ("PROJECTOR_PASSWORD",),
}
LOGINS = {
    "migrate": "headwater",
    "gateway": "headwater_gateway",
    "workflows": "headwater_worker",
    "projector": "headwater_projector",
}
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
    for name in set(OURS) - {"migrate"}:
        assert services[name]["environment"]["HEADWATER_REPLICATION"] == 3
        assert services[name]["environment"]["HEADWATER_KAFKA"].count("kafka-") == 3


def test_brokers_differ_in_their_number_address_and_data(services: dict[str, Any]):
    for number, name in enumerate(BROKERS, 1):
        settings = services[name]["environment"]
        assert settings["KAFKA_NODE_ID"] == number
        assert settings["KAFKA_ADVERTISED_LISTENERS"] == f"INSIDE://{name}:9092"
        assert "ports" not in services[name], "who reaches a broker reads everything"
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
    assert "pip install" in dockerfile
    assert re.search(r"^USER [1-9]\d+$", dockerfile, re.MULTILINE)


@pytest.mark.parametrize("name", OURS)
def test_a_part_has_the_secrets_that_it_needs(services: dict[str, Any], name: str):
    text = " ".join(map(str, services[name]["environment"].values()))
    result = set(re.findall(r"\$\{HEADWATER_(\w+):", text))
    assert result == set(SECRETS_OF[name])
    dsn = services[name]["environment"].get("HEADWATER_POSTGRES", "")
    assert dsn.partition("://")[2].partition(":")[0] == LOGINS.get(name, "")


def test_every_login_of_a_part_is_made_with_the_database_and_none_is_a_superusers(
    services: dict[str, Any],
):
    compose = yaml.safe_load(COMPOSE_FILE.read_text())
    script = compose["configs"]["roles"]["content"]
    made = dict(re.findall(r"create role (\w+) login(?: createrole)? password :'(\w+)'", script))
    assert set(made) == {*LOGINS.values()} == {"headwater", *ROLES}
    for variable in made.values():
        assert f"\\getenv {variable} {variable.upper()}_PASSWORD" in script
        assert f"{variable.upper()}_PASSWORD" in services["postgres"]["environment"]
    assert "POSTGRES_USER" not in services["postgres"]["environment"], "of the image, postgres"


def test_no_container_has_powers_that_it_does_not_need(services: dict[str, Any]):
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"], name
        assert service["mem_limit"], name
        assert service.get("cap_add", []) == [] or name == "postgres"
    for name in (*OURS, "postgres"):
        assert services[name]["read_only"] is True
        assert services[name]["tmpfs"]


def test_the_viewer_asks_for_a_password_and_is_started_on_demand(services: dict[str, Any]):
    viewer = services["viewer"]
    assert viewer["profiles"] == ["viewer"]
    assert viewer["environment"]["AUTH_TYPE"] == "LOGIN_FORM"
    assert "HEADWATER_VIEWER_PASSWORD" in viewer["environment"]["SPRING_SECURITY_USER_PASSWORD"]


def test_nothing_that_builds_or_runs_in_the_image_comes_without_a_hash():
    dockerfile = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"pip (?:install|wheel)[^&\n]*", dockerfile):
        hashed = "--require-hashes" in line and "--only-binary :all:" in line
        ours = "--no-deps" in line and ("--no-build-isolation" in line or "--no-index" in line)
        assert hashed or ours, line
    lock = (ROOT / "requirements-build.txt").read_text()
    pinned = re.findall(r"^(\w+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE)
    assert [name for name, _ in pinned] == ["setuptools"]
    assert f"setuptools=={pinned[0][1]} " in (ROOT / "requirements-dev.txt").read_text()


def test_the_image_installs_requirements_once_for_the_gateway_and_workers(
    services: dict[str, Any],
):
    state = "state:/var/lib/headwater/.headwater/state"
    assert all(state in services[name]["volumes"] for name in ("gateway", "workflows"))
    assert "RUN python -m venv /opt/headwater\n" in (ROOT / "Dockerfile").read_text()  # with pip
