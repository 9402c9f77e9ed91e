"""Sources through the real application: secrets from everywhere, handshakes, no provider needed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import (
    DEVELOPMENT_SOURCES,
    sources_of,
    sources_with_secrets,
    with_development_sources,
)
from headwater.processors.providers.envelope import Malformed
from headwater.processors.providers.generic import generic_provider
from headwater.processors.providers.provider import Placement
from headwater.processors.signature_schemes import SCHEMES
from headwater.processors.signatures import sign
from headwater.processors.sources import SourcesInvalid, providers_of
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.codec import decode, encode
from headwater.schemas.records import EffectDecided, OutcomeRecorded
from headwater.schemas.topics import EFFECTS, OUTCOMES
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionState
from tests.commit_units import emitted_by
from tests.fakes.delivery_log import MemoryLog
from tests.fakes.memory_store import MemoryStore
from tests.unit.gateway.conftest import NOW_MS, Running
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem

OWN = {
    "admin_key": "admin-3hT8wZ5pRc",
    "read_key": "read-6jN1yB4uGeQ",
    "workflow_key": "flow-8mD0xS7kVaU",
    "world_key": "away-2qP5cW9tHfK",
}
SHOP = '[[source]]\nname = "shop"\nscheme = "plain"\n'


def settings_of(folder: Path, text: str, **others: str) -> Settings:
    file = folder / "sources.toml"
    file.write_text(text)
    return Settings(sources=str(file), **others)


def secrets(settings: Settings, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    (source,) = sources_with_secrets(settings, environment or {})
    return source.secrets


def problem(settings: Settings) -> str:
    with pytest.raises(SourcesInvalid) as caught:
        sources_with_secrets(settings, {})
    where, _, lines = caught.value.message.partition("\n")
    assert where == f"HEADWATER_SOURCES, {settings.sources}:"
    return lines


def test_secrets_come_from_the_file_from_variables_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("fourth\n\nfifth\n")
    settings = settings_of(
        tmp_path, f'{SHOP}secrets = ["first"]\nsecret_env = "SHOP"\nsecret_file = "secret"'
    )
    result = secrets(settings, {"SHOP": "second, third"})
    assert result == ("first", "second", "third", "fourth", "fifth")


def test_a_source_of_a_provider_has_the_secrets_of_its_setting(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path, '[[source]]\nname = "eu"\nprovider = "terra"', terra_secrets="one,two"
    )
    assert secrets(settings) == ("one", "two")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('secret_env = "SHOP"', "source shop: secret_env, SHOP: expected a secret, found none"),
        (
            'secret_file = "nowhere"',
            "source shop: secret_file: [Errno 2] No such file",
        ),
    ],
)
def test_a_secret_that_is_not_there_is_named(tmp_path: Path, line: str, found: str) -> None:
    assert problem(settings_of(tmp_path, SHOP + line)).startswith(found)


def test_a_secret_that_cannot_sign_is_named_and_not_told(tmp_path: Path) -> None:
    text = SHOP.replace("plain", "svix") + 'secrets = ["whsec_MTIz", "whsec_?"]'
    assert problem(settings_of(tmp_path, text)) == (
        "source shop: secret 2: expected base64 after whsec_"
    )


@pytest.mark.parametrize("secret", ["short", "dev-github-secret", "dev-terra-secret"])
def test_short_and_known_secrets_are_for_loopback_alone(tmp_path: Path, secret: str) -> None:
    text = f'{SHOP}secrets = ["{secret}"]'
    assert secrets(settings_of(tmp_path, text)) == (secret,)
    result = problem(settings_of(tmp_path, text, host="0.0.0.0", **OWN))
    assert result.startswith("source shop: secret 1: expected a secret of your own")
    assert secret not in result


def test_a_topic_in_avro_needs_a_registry(tmp_path: Path) -> None:
    topic = '[[source]]\nname = "orders"\nkind = "kafka"\ntopic = "o"\nformat = "avro"'
    expected = "expected HEADWATER_SCHEMA_REGISTRY for a topic in Avro, found none"
    assert problem(settings_of(tmp_path, topic)) == f"source orders: {expected}"
    registry = settings_of(tmp_path, topic, schema_registry="http://127.0.0.1:8081")
    assert sources_with_secrets(registry, {}) == ()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SourcesInvalid, match="HEADWATER_SOURCES, /nowhere"):
        sources_of(Settings(sources="/nowhere"))


def test_sources_for_development_have_every_scheme_and_are_for_loopback_alone() -> None:
    here = with_development_sources(Settings())
    assert here.sources == DEVELOPMENT_SOURCES
    result = sources_with_secrets(here, {})
    assert {source.scheme.name for source in result} == set(SCHEMES)
    away = Settings(host="0.0.0.0", terra_secrets="away-2qP5cW9tHfK", **OWN)
    assert with_development_sources(away) is away


# --- over HTTP --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def development() -> Settings:
    return with_development_sources(Settings())


@pytest.fixture(scope="module")
def of_all_sources(running: Running, development: Settings) -> Iterator[TestClient[Any]]:
    app = memory_app(development, log=running.log, clock=lambda: NOW_MS)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(log: MemoryLog, of_all_sources: TestClient[Any]) -> TestClient[Any]:
    assert log.ready
    return of_all_sources


def post(
    client: TestClient[Any], settings: Settings, name: str, body: bytes, id_: str = "msg_1",
    **more: str,
) -> Any:  # noqa: ANN401 (an answer)  # fmt: skip
    (source,) = [one for one in sources_with_secrets(settings, {}) if one.name == name]
    headers = sign(source.scheme, body, source.secrets[0], NOW_MS // 1000, id_)
    named = {header.replace("_", "-"): value for header, value in more.items()}
    return client.post(f"/webhooks/{name}", content=body, headers={**headers, **named})


def test_every_scheme_is_reachable(
    client: TestClient[Any], development: Settings, log: MemoryLog
) -> None:
    body = b'{"type":"daily","user":{"user_id":"u"}}'
    for name in ("terra", "standard", "svix", "stripe", "github", "shopify", "slack", "plain"):
        log.deliveries.clear()
        assert post(client, development, name, body, x_github_event="push").json()["ok"], name
        assert [(one.source, one.body) for one in log.deliveries] == [(name, body)]
        assert_problem(client.post(f"/webhooks/{name}", content=body), 401, "invalid_signature")


@pytest.mark.parametrize(
    ("type_at", "body", "type_"),
    [
        ("/type", b'{"type":"push"}', "push"),
        ("/type", b'{"other":1}', "unknown"),
        ("/type", b"7", "unknown"),
        ("/type", b"", "malformed_payload"),
        ("/type", b"{", "malformed_payload"),
        ("/type", b'{"a":1}x', "malformed_payload"),
        ("/type", b"\xff", "undecodable"),
        ("x-topic", b"{", "unknown"),
        (None, b"\xff", "unknown"),
    ],
)
def test_a_body_that_is_not_json_is_malformed_only_if_its_type_is_in_it(
    type_at: str | None, body: bytes, type_: str
) -> None:
    provider = generic_provider("shop", SCHEMES["plain"], type_at=type_at, subject_at=None)
    routing = provider.route(body, {})
    assert (routing.code if isinstance(routing, Malformed) else routing.type) == type_


PUSHED = """
[[rule]]
name = "pushed"
source = "plain"
type = "push"
workflow = "build"
mode = "start"
id = '"build-" + event.body.after'
"""


def test_a_delivery_without_a_provider_is_skipped_by_name_and_starts_workflows(
    client: TestClient[Any], development: Settings, log: MemoryLog
) -> None:
    answer = post(client, development, "plain", b'{"type":"push","after":"c0ffee"}')
    assert answer.json()["type"] == "push"
    providers = providers_of(sources_of(development))
    intake = Intake(
        placement=Placement(providers, "user_"),
        partitions=1,
        park_for_ms=1,
        rules=read_rules(PUSHED),
    )
    (delivery,) = log.deliveries
    raw = Outgoing("webhooks", 0, delivery.event_id.encode(), encode(delivery))
    emitted = emitted_by(intake, PartitionState(0, MemoryStore()), [_read(raw)], NOW_MS)
    (outcome,) = [one for one in emitted if one.topic == OUTCOMES]
    result = decode(outcome.value, OutcomeRecorded)
    assert (result.status, result.reason, result.type) == ("skipped", "no_normalizer", "push")
    (effect,) = [one for one in emitted if one.topic == EFFECTS]
    started = decode(effect.value, EffectDecided)
    assert (started.workflow, started.instance_id) == ("build", "build-c0ffee")


def _read(record: Outgoing) -> Incoming:
    key = record.key or b""
    return Incoming(record.topic, 0, 0, NOW_MS, 0, key, record.value, None, len(key), 0, ())


def test_a_signed_id_says_which_deliveries_are_the_same(
    client: TestClient[Any], development: Settings, log: MemoryLog
) -> None:
    body = b'{"type":"tick"}'
    first = post(client, development, "standard", body, "msg_1").json()
    again = post(client, development, "standard", body, "msg_1").json()
    other = post(client, development, "standard", body, "msg_2").json()
    assert again["duplicate"]
    assert again["raw_event_id"] == first["raw_event_id"]
    assert "duplicate" not in other
    assert len(log.deliveries) == 2


def test_handshakes_are_answered_once_verified_and_go_no_further(
    client: TestClient[Any], development: Settings, log: MemoryLog
) -> None:
    requested = b'{"type":"url_verification","challenge":"abc"}'
    answer = post(client, development, "slack", requested)
    assert (answer.status_code, answer.text) == (200, "abc")
    assert answer.headers["content-type"].startswith("text/plain")
    pinged = post(client, development, "github", b"{}", x_github_event="ping")
    assert (pinged.status_code, pinged.text) == (200, "pong")
    assert_problem(client.post("/webhooks/slack", content=requested), 401, "invalid_signature")
    assert not log.deliveries
    assert 'outcome="handshake",source="slack"' in client.get("/metrics").text
