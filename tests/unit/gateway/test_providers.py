"""Goal: a package that is installed beside Headwater adds a provider, and nothing else changes."""

import dataclasses
import hmac
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result
from litestar.testing import TestClient

from headwater.gateway.cli.main import cli
from headwater.gateway.settings.environment import environment, load_settings
from headwater.gateway.settings.providers import GROUP, ProviderInvalid, installed_providers
from headwater.gateway.settings.sources import sources_with_secrets, with_development_sources
from headwater.processors.columns import RowUpdate
from headwater.processors.providers.provider import DeliveryType, Placement, Providers, catalogue_of
from headwater.processors.providers.results import Normalized, NormalizeResult
from headwater.processors.providers.terra.provider import TERRA
from headwater.processors.signatures import key_of
from headwater.processors.sources import SourcesInvalid
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.records import OutcomeRecorded, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import DAILY_SUMMARY, Value
from headwater.schemas.topics import DEAD_LETTERS, OUTCOMES
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionState
from tests.commit_units import emitted_by
from tests.fakes.delivery_log import MemoryLog
from tests.fakes.memory_store import MemoryStore
from tests.fakes.walks import WALKS
from tests.unit.gateway.conftest import NOW_MS
from tests.unit.gateway.memory_app import memory_app

SECRET = "walk-secret"
WALK = b'{"walker": "user_ada", "day": "2026-07-01", "steps": 4321}'

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package whose one entry point is `walks` with this value."""

    def put(value: str) -> None:
        info = tmp_path / "headwater_walks-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headwater-walks\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\nwalks = {value}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return put


def post(log: MemoryLog, event: str, body: bytes) -> httpx2.Response:
    app = memory_app(load_settings(), log=log, clock=lambda: NOW_MS)
    signature = "sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex()
    headers = {"x-hub-signature-256": signature, "x-walk-event": event}
    with TestClient(app) as client:
        return client.post("/webhooks/walks", content=body, headers=headers)


def read_back(record: Outgoing) -> Incoming:
    key = record.key or b""
    return Incoming(record.topic, 0, 0, NOW_MS, 0, key, record.value, None, len(key), 0, ())


def intake_of(providers: Providers) -> Intake:
    return Intake(placement=Placement(providers, "user_"), partitions=1, park_for_ms=1)


def through_pipeline(delivery: WebhookReceived) -> list[Outgoing]:
    """What comes of a delivery that names its user."""
    raw = Outgoing("webhooks", 0, delivery.event_id.encode(), encode(delivery))
    return step(installed_providers(), read_back(raw))


def step(providers: Providers, record: Incoming) -> list[Outgoing]:
    state = PartitionState(0, MemoryStore())
    return emitted_by(intake_of(providers), state, [record], NOW_MS)


def outcome(emitted: list[Outgoing]) -> OutcomeRecorded:
    (result,) = (record for record in emitted if record.topic == OUTCOMES)
    return decode(result.value, OutcomeRecorded)


def test_a_delivery_of_an_installed_provider_becomes_a_row(
    install: Install, monkeypatch: pytest.MonkeyPatch
):
    install("tests.fakes.walks:WALKS")
    monkeypatch.setenv("HEADWATER_WALKS_SECRETS", f"{SECRET},older")
    log = MemoryLog()
    answer = post(log, "walk", WALK)
    assert (answer.status_code, answer.json()["type"]) == (200, "walk")
    (delivery,) = log.deliveries
    assert (delivery.source, delivery.reference, delivery.body) == ("walks", "user_ada", WALK)
    emitted = through_pipeline(delivery)
    (record,) = (item for item in emitted if item.topic == DAILY_SUMMARY.topic)
    row = decode_row(DAILY_SUMMARY, record.value)
    assert row.key == ("user_ada", "walks", "2026-07-01")
    assert row.values[DAILY_SUMMARY.index["steps"]] == 4321
    assert outcome(emitted).status == "processed"


@pytest.mark.parametrize(("event", "reason"), [("ping", "ping"), ("swim", "unknown_type:swim")])
def test_what_an_installed_provider_does_not_store_is_skipped(
    install: Install, monkeypatch: pytest.MonkeyPatch, event: str, reason: str
):
    install("tests.fakes.walks:WALKS")
    monkeypatch.setenv("HEADWATER_WALKS_SECRETS", SECRET)
    log = MemoryLog()
    assert post(log, event, WALK).status_code == 200
    result = outcome(through_pipeline(log.deliveries[0]))
    assert (result.status, result.reason) == ("skipped", reason)


def test_a_provider_without_secrets_refuses_everything(install: Install):
    install("tests.fakes.walks:WALKS")
    assert post(MemoryLog(), "walk", WALK).json()["code"] == "invalid_signature"


def test_secrets_of_an_installed_provider_reach_child_processes(
    install: Install, monkeypatch: pytest.MonkeyPatch
):
    install("tests.fakes.walks:WALKS")
    monkeypatch.setenv("HEADWATER_WALKS_SECRETS", "new, older")
    settings = load_settings(port=9001)
    assert settings.secrets_of("walks") == ("new", "older")
    assert environment(settings)["HEADWATER_WALKS_SECRETS"] == "new,older"


def sign(type_: str) -> Result:
    arguments = ["webhook", "sign", "--source", "walks", "--type", type_, "-"]
    return CliRunner().invoke(cli, arguments, input=WALK)


def test_sign_says_in_the_header_of_a_provider_what_a_delivery_is(install: Install):
    install("tests.fakes.walks:WALKS")
    assert "x-walk-event: walk\n" in sign("walk").stdout


def test_a_provider_that_does_not_say_which_header_has_the_type_is_told_how(install: Install):
    install("tests.fakes.walks:UNTYPED")
    refused = sign("walk")
    assert refused.exit_code == 2
    assert "if x-walk-event states it, declare that with `type_header=`" in refused.output


def test_without_secrets_a_provider_has_one_of_development_that_its_scheme_can_use(
    install: Install,
):
    install("tests.fakes.walks:STANDARD")
    (result,) = (
        secret for secret in sources_with_secrets(load_settings(), {}) if secret.name == "walks"
    )
    (secret,) = result.secrets
    assert key_of(result.scheme, secret) == b"dev-walks-secret"


@pytest.mark.parametrize("secret", ["dev-walks-secret", "whsec_ZGV2LXdhbGtzLXNlY3JldA=="])
def test_a_secret_of_a_setting_that_cannot_be_is_named_by_its_variable(
    install: Install, secret: str
):
    install("tests.fakes.walks:STANDARD")
    keys = ("admin_key", "read_key", "workflow_key", "world_key")
    own = dict.fromkeys(keys, "own-7rE3zJ6nXoPd")
    settings = load_settings(
        host="0.0.0.0", terra_secrets="terra-9fK2vQ7xLm", walks_secrets=secret, **own
    )
    with pytest.raises(SourcesInvalid, match="source walks: HEADWATER_WALKS_SECRETS, secret 1: "):
        sources_with_secrets(with_development_sources(settings), {})


@pytest.mark.parametrize(
    "value", ["tests.fakes.walks:NOT_A_PROVIDER", "tests.fakes.walks:NOTHING", "no_such_module:X"]
)
def test_an_entry_point_that_is_no_provider_is_named(install: Install, value: str):
    install(value)
    with pytest.raises(ProviderInvalid, match=f"walks = {value}"):
        installed_providers()


def test_a_second_provider_of_a_name_is_refused():
    with pytest.raises(ValueError, match="name of a provider once, found terra twice"):
        catalogue_of([TERRA, dataclasses.replace(WALKS, name="terra")])


def test_a_path_that_two_providers_want_is_refused():
    with pytest.raises(ValueError, match="path of a provider once, found / twice"):
        catalogue_of([TERRA, dataclasses.replace(WALKS, more_paths=("/",))])


def test_a_table_whose_rows_would_have_two_owners_is_refused():
    by_subject: DeliveryType[object] = dataclasses.replace(WALKS.types["walk"], of_user=False)
    with pytest.raises(ValueError, match="belong to a subject, found daily_summary"):
        catalogue_of([TERRA, dataclasses.replace(WALKS, types={"walk": by_subject})])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Walks"},
        {"name": "walks/../x"},
        {"more_paths": ("walks",)},
        {"more_paths": ("/{any}",)},
        {"skipped": frozenset({"walk"})},
    ],
)
def test_a_provider_that_could_not_be_served_cannot_be_made(changes: dict[str, object]):
    with pytest.raises(ValueError, match="expected"):
        dataclasses.replace(WALKS, **changes)


def test_a_row_of_a_table_that_a_type_does_not_declare_is_a_dead_letter():
    undeclared = dataclasses.replace(WALKS.types["walk"], tables=())
    walks = dataclasses.replace(WALKS, types={"walk": undeclared})
    emitted = normalized_by({"walks": walks}, "walks")
    assert (outcome(emitted).status, outcome(emitted).reason) == ("dead", "undeclared_table")


DAY = ("user_ada", "walks", "2026-07-01")


@pytest.mark.parametrize(
    ("key", "values", "named"),
    [
        (DAY, {"steps": "many"}, "daily_summary.steps to be int, found 'many'"),
        (DAY, {"steps": 1.5}, "daily_summary.steps to be int, found 1.5"),
        (DAY, {"steps": 2**63}, "daily_summary.steps to be int, found 9223372036854775808"),
        (DAY, {"strain": True}, "daily_summary.strain to be float, found True"),
        (DAY, {"bed_time": "\ud800"}, r"daily_summary.bed_time to be str, found '\ud800'"),
        (DAY, {"bed_time": "yesterday"}, "daily_summary.bed_time to be a date in figures, as in"),
        (DAY, {"bed_time": "2026-07-01 now"}, "2026-07-01T10:00:00Z, found '2026-07-01 now'"),
        ((*DAY[:2], "today"), {"steps": 1}, "daily_summary.datetime to be a date in figures"),
        (DAY, {"stairs": 1}, "columns of daily_summary, found one named stairs"),
        (DAY[:2], {"steps": 1}, "texts for user_id, source, datetime, found ('user_ada', 'walks')"),
        (("\udfff", *DAY[1:]), {"steps": 1}, "texts for user_id, source, datetime, found"),
    ],
)
def test_what_a_table_cannot_hold_is_a_dead_letter_and_ends_no_worker(
    key: tuple[str, ...], values: dict[str, Value], named: str
):
    def misread(event: WebhookAdmitted, user_id: str, payload: object) -> NormalizeResult:
        del user_id, payload
        good = RowUpdate(DAILY_SUMMARY, DAY, {"steps": 1}, event.stamp())
        return Normalized((good, RowUpdate(DAILY_SUMMARY, key, values, event.stamp())))

    faulty = dataclasses.replace(WALKS.types["walk"], normalize=misread)
    walks = dataclasses.replace(WALKS, types={"walk": faulty})
    emitted = normalized_by({"walks": walks}, "walks")
    assert (outcome(emitted).status, outcome(emitted).reason) == ("dead", "unfit_value")
    assert [record.topic for record in emitted if record.topic == DAILY_SUMMARY.topic] == []
    (letter,) = (record for record in emitted if record.topic == DEAD_LETTERS)
    message = dict(letter.headers or ())["__connect.errors.exception.message"].decode()
    assert named in message


def test_a_delivery_of_a_provider_that_is_not_installed_is_a_dead_letter():
    emitted = normalized_by({"terra": TERRA}, "walks")
    assert (outcome(emitted).status, outcome(emitted).reason) == ("dead", "unknown_source")


def test_rows_that_belong_to_the_subject_need_no_user():
    by_subject = dataclasses.replace(WALKS.types["walk"], of_user=False)
    walks = dataclasses.replace(WALKS, types={"walk": by_subject})
    emitted = normalized_by({"walks": walks}, "walks", subject="repo-1", reference=None)
    assert outcome(emitted).status == "processed"
    (row,) = (item for item in emitted if item.topic == DAILY_SUMMARY.topic)
    assert decode_row(DAILY_SUMMARY, row.value).key[0] == "repo-1"


def test_a_delivery_whose_user_no_lookup_finds_is_a_dead_letter_at_once():
    emitted = normalized_by({"walks": WALKS}, "walks", subject="somebody", reference=None)
    assert (outcome(emitted).status, outcome(emitted).reason) == ("dead", "no_user")


def test_a_wait_of_a_provider_that_is_gone_stays_until_a_worker_has_it_again():
    terra = {"terra": TERRA}
    emitted = normalized_by(terra, "terra", subject="t1", reference=None, type="daily")
    (wait,) = (record for record in emitted if record.topic == "waiting")
    for providers, ended in (({}, [0, 0]), (terra, [1, 0])):
        state = PartitionState(0, MemoryStore())
        state.restore_record(read_back(wait))
        ticks = [intake_of(providers).tick(state, NOW_MS + 5) for _ in ended]
        assert [sum(r.topic == "dead-letters" for r in tick) for tick in ticks] == ended


def delivered(source: str, **changes: object) -> Outgoing:
    fields: dict[str, object] = {
        "event_id": "e1",
        "request_id": "r1",
        "source": source,
        "type": "walk",
        "subject": "",
        "reference": "user_ada",
        "sent_at_ms": NOW_MS,
        "updated_at_ms": 0,
        "received_at_ms": NOW_MS,
        "body": WALK,
    }
    return Outgoing("webhooks", 0, b"e1", encode(WebhookReceived(**(fields | changes))))


def normalized_by(providers: Providers, source: str, **changes: object) -> list[Outgoing]:
    """What a worker with these providers comes to with a delivery of a source."""
    return step(providers, read_back(delivered(source, **changes)))
