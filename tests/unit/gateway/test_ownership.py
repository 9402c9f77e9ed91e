"""Who executes runs: what is said of callbacks that came to the gateway, and how commands end."""

from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from litestar.testing import TestClient

from headwater.gateway.api.ownership import ownership
from headwater.gateway.cli.doctor import validate_ownership
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.workflows import EXPECTED_WORLD
from headwater.projections.gateway_state import Hits
from tests.fakes.json_server import answering
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem

NONE = Hits(0, 0, None)
LONG_AGO = Hits(7, 0, datetime(2026, 1, 1, tzinfo=UTC))
NOW = Hits(7, 1, datetime(2026, 7, 1, tzinfo=UTC))
FLOW = "/.well-known/workflow/v1/flow"


@pytest.mark.parametrize(
    ("remote", "strict", "world", "hits", "expected"),
    [
        (True, True, EXPECTED_WORLD, NONE, "pass"),
        (True, True, EXPECTED_WORLD, LONG_AGO, "pass"),
        (True, True, EXPECTED_WORLD, NOW, "fail"),
        (True, False, EXPECTED_WORLD, NOW, "warn"),
        (True, True, "another/world", NONE, "fail"),
        (True, False, "another/world", NONE, "warn"),
        (False, True, "another/world", NOW, "pass"),
    ],
)
def test_status(remote: bool, strict: bool, world: str, hits: Hits, expected: str):
    settings = Settings(remote_mode=remote, strict_ownership=strict, target_world=world)
    result = ownership(settings, hits)
    assert result.status == expected
    assert result.target_world == world
    assert result.lifetime_unexpected_hits == hits.lifetime


@pytest.mark.parametrize("path", [FLOW, "/.well-known/workflow/v1/step"])
def test_a_callback_is_refused_also_while_postgres_is_away(path: str):
    with TestClient(memory_app(), raise_server_exceptions=False) as client:
        assert_problem(client.post(path, json={"runId": "run-1"}), 409, "remote_execution")


def test_without_remote_mode_there_is_nothing_there():
    app = memory_app(Settings(remote_mode=False))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert_problem(client.post(FLOW), 404, "not_found")


@pytest.mark.parametrize(
    ("status", "flags", "code"),
    [
        ("pass", ["--strict"], 0),
        ("warn", [], 0),
        ("warn", ["--strict"], 1),
        ("fail", [], 1),
        ("fail", ["--strict"], 1),
    ],
)
def test_the_command_ends_as_the_diagnosis_says(status: str, flags: list[str], code: int):
    with answering(lambda _: {"status": status}) as (url, _):
        assert CliRunner().invoke(validate_ownership, [*flags, "--url", url]).exit_code == code
