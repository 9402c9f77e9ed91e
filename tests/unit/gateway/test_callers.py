"""Who may call /v1: readers with their key, users with their tokens, and nobody else."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from litestar.testing import TestClient

from headwater.gateway.api.users.ports import UserServices
from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.cli.user_tokens import token as token_command
from headwater.gateway.cli.user_tokens import verifier_of, with_development_issuer
from headwater.gateway.settings.exposure import DEVELOPMENT_ISSUER
from headwater.gateway.settings.settings import Settings
from headwater.streams.clock import now_ms
from tests.unit.gateway.issuer import AUDIENCE, ISSUER, NOW_S, key_set, token
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Any]]:
    """A gateway that takes tokens; its Postgres is away, so whoever is let in gets 503."""
    jwks = tmp_path_factory.mktemp("users") / "jwks.json"
    jwks.write_bytes(key_set())
    with taking_tokens(jwks) as client:
        yield client


@contextmanager
def taking_tokens(jwks: Path) -> Iterator[TestClient[Any]]:
    settings = Settings(
        terra_secrets="current", jwks=str(jwks), jwt_issuer=ISSUER, jwt_audience=AUDIENCE
    )
    app = memory_app(
        settings,
        clock=lambda: NOW_S * 1000,
        users=UserServices(
            tokens=verifier_of(settings, clock=lambda: NOW_S * 1000, steady_s=lambda: 0.0),
            terra=Terra(settings.terra, draw=lambda: 0.0, wall_s=lambda: NOW_S),
            blobs=FolderBlobs(jwks.parent / "blobs"),
        ),
    )
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.mark.parametrize("text", ["dev-read-key", token()])
def test_a_reader_and_a_user_are_let_in(users: TestClient[Any], text: str):
    assert_problem(users.get("/v1/sync", headers=bearer(text)), 503, "store_unavailable")


def test_what_is_wrong_with_a_token_is_said(users: TestClient[Any]):
    answer = users.get("/v1/sync", headers=bearer(token(exp=1)))
    assert_problem(answer, 401, "unauthorized")
    assert "exp: the token has expired" in answer.json()["detail"]
    assert answer.headers["www-authenticate"] == "Bearer"


def test_whoever_brings_nothing_is_told_what_to_bring(users: TestClient[Any]):
    answer = users.get("/v1/sync")
    assert_problem(answer, 401, "unauthorized")
    assert "readers' key" in answer.json()["detail"]
    assert "token" in answer.json()["detail"]


def test_a_user_sees_no_rows_of_others(users: TestClient[Any]):
    mine = users.get("/v1/sync?user_id=user_amara", headers=bearer(token()))
    assert_problem(mine, 503, "store_unavailable")
    other = users.get("/v1/sync?user_id=user_bo", headers=bearer(token()))
    assert_problem(other, 403, "forbidden")
    assert other.json()["field"] == "user_id"


def test_a_token_opens_nothing_of_the_operators(users: TestClient[Any]):
    headers = {"x-admin-key": token(), **bearer(token())}
    assert_problem(users.get("/admin/dlq", headers=headers), 401, "unauthorized")


def test_while_keys_are_away_nobody_is_called_unknown(tmp_path: Path):
    with taking_tokens(tmp_path / "jwks.json") as users:
        answer = users.get("/v1/sync", headers=bearer(token()))
        assert_problem(answer, 503, "jwks_unavailable")
        assert answer.headers["retry-after"]
        assert users.get("/v1/sync", headers=bearer("dev-read-key")).status_code == 503


def test_a_gateway_without_keys_says_that_it_takes_no_tokens(client: TestClient[Any]):
    answer = client.get("/v1/sync", headers=bearer(token()))
    assert_problem(answer, 401, "unauthorized")
    assert "HEADWATER_JWKS" in answer.json()["detail"]


SECRETS = {
    "terra_secrets": "terra-9fK2vQ7xLm",
    "admin_key": "admin-3hT8wZ5pRc",
    "read_key": "read-6jN1yB4uGeQ",
    "workflow_key": "flow-8mD0xS7kVaU",
    "world_key": "away-2qP5cW9tHfK",
}


@pytest.mark.parametrize("issuer", ["", DEVELOPMENT_ISSUER])
def test_an_address_that_others_reach_needs_an_issuer_of_ones_own(issuer: str):
    with pytest.raises(ValueError, match="HEADWATER_JWT_ISSUER"):
        Settings(host="0.0.0.0", jwks="jwks.json", jwt_issuer=issuer, **SECRETS)
    Settings(host="0.0.0.0", jwks="jwks.json", jwt_issuer=ISSUER, jwt_audience=AUDIENCE, **SECRETS)


def test_an_address_that_others_reach_has_no_development_issuer(tmp_path: Path):
    settings = Settings(host="0.0.0.0", data_dir=tmp_path, **SECRETS)
    assert with_development_issuer(settings) is settings
    assert list(tmp_path.iterdir()) == []


def test_an_issuer_of_ones_own_is_left_alone(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, jwks="https://issuer.example/jwks.json")
    assert with_development_issuer(settings) is settings


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HEADWATER_DATA_DIR", str(tmp_path))
    return with_development_issuer(Settings(data_dir=tmp_path))


def test_the_command_prints_a_token_that_the_gateway_takes(at_home: Settings):
    result = CliRunner().invoke(token_command, ["user_amara", "--expires", "15m"])
    assert result.exit_code == 0
    printed = result.stdout.removesuffix("\n")

    verifier = verifier_of(at_home, clock=now_ms, steady_s=lambda: 0.0)
    assert verifier is not None
    assert asyncio.run(verifier.user_of(printed)) == "user_amara"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["amara"], "begins with user_"),
        (["user_\x07"], "no control characters"),
        (["user_amara", "--expires", "soon"], "a duration"),
        (["user_amara", "--expires", "0"], "1 second to 366 days"),
        (["user_amara", "--expires", "9999d"], "1 second to 366 days"),
        (["user_amara", "--data-dir", "nowhere"], "headwater up"),
    ],
)
def test_the_command_says_what_it_expected(at_home: Settings, arguments: list[str], said: str):
    assert at_home.jwks
    result = CliRunner().invoke(token_command, arguments)
    assert result.exit_code != 0
    assert said in result.output


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HEADWATER_JWKS", "https://issuer.example/jwks.json"), ("HEADWATER_HOST", "0.0.0.0")],
)
def test_the_command_signs_only_for_a_machine_of_ones_own(
    at_home: Settings, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
):
    assert at_home.jwks
    for name, secret in SECRETS.items():
        monkeypatch.setenv(f"HEADWATER_{name.upper()}", secret)
    monkeypatch.setenv(variable, value)
    result = CliRunner().invoke(token_command, ["user_amara"])
    assert result.exit_code == 1
    assert variable in result.output
