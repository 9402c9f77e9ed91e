"""Settings: every mistake is one line that names the variable, what was expected and found."""

import base64
import hashlib
import os
from contextlib import nullcontext
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.settings.environment import (
    SettingsInvalid,
    describe,
    environment,
    load_settings,
    unknown_variables,
)
from headwater.gateway.settings.exposure import is_loopback, weakness_of
from headwater.gateway.settings.process import clear_text_warnings
from headwater.gateway.settings.settings import PREFIX, Settings, revealed
from headwater.schemas.history import Limits

SECRETS = {
    "HEADWATER_TERRA_SECRETS": "mine-1-long-enough,mine-2-long-enough",
    "HEADWATER_ADMIN_KEY": "mine-admin-long-enough",
    "HEADWATER_READ_KEY": "mine-read-long-enough",
    "HEADWATER_WORKFLOW_KEY": "mine-workflow-long-enough",
    "HEADWATER_WORLD_KEY": "mine-world-long-enough",
}


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("HEADWATER_PORT", "x", "HEADWATER_PORT: expected a whole number, found 'x'"),
        ("HEADWATER_PORT", "70000", "HEADWATER_PORT: expected 65535 or less, found '70000'"),
        ("HEADWATER_PARTITIONS", "0", "HEADWATER_PARTITIONS: expected 1 or more, found '0'"),
        *(
            (
                "HEADWATER_METRICS_ADDRESS",
                address,
                "HEADWATER_METRICS_ADDRESS: expected host:port, such as 0.0.0.0:9600, found "
                f"'{address}'",
            )
            for address in ("9600", "localhost", "localhost:99999", "::1:9600", "http://here:1")
        ),
        (
            "HEADWATER_APPEND_TIMEOUT_S",
            "0",
            "HEADWATER_APPEND_TIMEOUT_S: expected more than 0.0, found '0'",
        ),
        (
            "HEADWATER_LOG_LEVEL",
            "loud",
            "HEADWATER_LOG_LEVEL: expected one of 'debug', 'info', 'warning' or 'error', "
            "found 'loud'",
        ),
        (
            "HEADWATER_ADMIN_KEY",
            "short",
            "HEADWATER_ADMIN_KEY: expected text of at least 8 characters, found (secret)",
        ),
        (
            "HEADWATER_ADMIN_KEY",
            "long-enough,short",
            "HEADWATER_ADMIN_KEY: expected text of at least 8 characters, found (secret)",
        ),
        (
            "HEADWATER_TERRA_SECRETS",
            " , ",
            "HEADWATER_TERRA_SECRETS: expected text of at least 1 characters, found (secret)",
        ),
        (
            "HEADWATER_TICK_KEY",
            "short",
            "HEADWATER_TICK_KEY: expected text of at least 8 characters, found (secret)",
        ),
        *[
            (
                "HEADWATER_TICK_URL",
                url,
                f"HEADWATER_TICK_URL: expected http:// and a loopback address, found '{url}'",
            )
            for url in (
                "http://10.0.0.1:80",
                "https://127.0.0.1",
                "127.0.0.1:80",
                "http://127.1.1.1.1:80",
            )
        ],
        (
            "HEADWATER_TRUSTED_PROXIES",
            "10.0.0.0/8,proxy",
            "HEADWATER_TRUSTED_PROXIES: expected networks such as 10.0.0.0/8, separated by "
            "commas, found '10.0.0.0/8,proxy'",
        ),
        (
            "HEADWATER_WORKFLOW_HOOKS",
            "hooks.py",
            "HEADWATER_WORKFLOW_HOOKS: expected package.module:attribute, found 'hooks.py'",
        ),
    ],
)
def test_a_bad_value_is_one_line(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    assert caught.value.problems == (line,)


def test_users_may_have_ids_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_USER_PREFIX", "")
    assert load_settings().user_prefix == ""


@pytest.mark.parametrize(
    ("path", "is_valid"),
    [
        ("/auth/generateWidgetSession", True),
        ("https://access.tryterra.co/api/widget/session", True),
        ("https://access.tryterra.co", False),
        ("ftp://access.tryterra.co/a", False),
        ("auth/generateWidgetSession", False),
        ("/auth?a=b", False),
    ],
)
def test_a_session_to_connect_begins_at_a_path_or_on_another_host(
    monkeypatch: pytest.MonkeyPatch, path: str, is_valid: bool
) -> None:
    monkeypatch.setenv("HEADWATER_TERRA_WIDGET_PATH", path)
    with nullcontext() if is_valid else pytest.raises(SettingsInvalid):
        assert load_settings().terra.widget_path == path


def test_a_setting_that_does_not_match_is_explained_in_words() -> None:
    patterned = {
        name: rule.pattern
        for name, field in Settings.model_fields.items()
        for rule in field.metadata
        if getattr(rule, "pattern", None)
    }
    assert len(patterned) > 5
    for name, pattern in patterned.items():
        with pytest.raises(SettingsInvalid) as caught:
            load_settings(**{name: ":?\n"})
        [line] = caught.value.problems
        assert pattern not in line, name
        assert "None" not in line, name


def test_a_dsn_of_another_database_is_refused_without_its_password() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(postgres="mysql://me:hidden@db/rows")
    assert caught.value.problems == (
        "HEADWATER_POSTGRES: expected postgresql://user:password@host/database, "
        "found 'mysql://me:(secret)@db/rows'",
    )


def test_a_dsn_may_be_a_list_of_names_and_values() -> None:
    assert load_settings(postgres="host=db dbname=rows").postgres == "host=db dbname=rows"


def test_networks_are_shown_and_reach_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(trusted_proxies="10.0.0.0/8, fd00::/8")
    monkeypatch.setenv(
        "HEADWATER_TRUSTED_PROXIES", environment(settings)["HEADWATER_TRUSTED_PROXIES"]
    )
    assert load_settings().trusted_proxies == settings.trusted_proxies
    (shown,) = [item for item in describe(settings) if item.name == "trusted_proxies"]
    assert (shown.value, shown.default) == ("10.0.0.0/8, fd00::/8", "")


def test_a_variable_that_is_no_setting_is_named_with_the_nearest_one() -> None:
    names = ["HEADWATER_PROT", "HEADWATER_PORT", "HEADWATER_DEBUG", "HEADWATER_XYZ", "PATH"]
    assert unknown_variables(load_settings(), names) == (
        "HEADWATER_PROT is no setting, and changes nothing; did you mean HEADWATER_PORT?",
        "HEADWATER_XYZ is no setting, and changes nothing; `headwater settings` lists them",
    )


def test_several_bad_values_are_several_lines() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(port=-1, partitions=0)
    assert len(caught.value.problems) == 2


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_PORT", "9001")
    assert load_settings().port == 9001
    assert load_settings(port=9002, host=None).port == 9002


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "headwater.example"])
def test_development_secrets_are_not_shown_to_the_network(host: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(host=host)
    (line,) = caught.value.problems
    assert all(variable in line for variable in SECRETS)
    assert "dev-" not in line


def test_only_the_secrets_that_are_still_known_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_ADMIN_KEY", SECRETS["HEADWATER_ADMIN_KEY"])
    monkeypatch.setenv("HEADWATER_TERRA_SECRETS", "mine-1-long-enough,dev-terra-secret")
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(host="0.0.0.0")
    (line,) = caught.value.problems
    assert "HEADWATER_TERRA_SECRETS, HEADWATER_READ_KEY, HEADWATER_WORKFLOW_KEY" in line
    assert "HEADWATER_ADMIN_KEY" not in line


def test_own_secrets_may_be_used_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings(host="0.0.0.0")
    assert settings.secrets_of("terra") == ("mine-1-long-enough", "mine-2-long-enough")


def test_a_short_secret_is_not_shown_to_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("HEADWATER_TERRA_SECRETS", "x")
    with pytest.raises(SettingsInvalid, match="set HEADWATER_TERRA_SECRETS to secrets of your own"):
        load_settings(host="0.0.0.0")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_what_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)


def test_a_child_process_reads_the_very_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(
        terra_secrets="one,two", port=9003, kafka="a:1,b:2", data_dir="elsewhere"
    )
    for variable, value in environment(settings).items():
        monkeypatch.setenv(variable, value)
    assert load_settings().model_dump() == settings.model_dump()


def test_every_setting_is_described_and_no_secret_is_shown() -> None:
    settings = Settings(
        terra_secrets="hidden-1",
        admin_key="hidden-2",
        read_key="hidden-3",
        workflow_key="hidden-5",
        tick_key="hidden-6",
        world_key="hidden-7",
        audit_keys="hidden-8,hidden-9",
        hook_keys="hidden-10",
        oidc_client_secret="hidden-11",
        kafka_password="hidden-12",
        postgres="postgresql://me:hidden-4@db/headwater",
    )
    rows = describe(settings)
    assert [row.name for row in rows] == list(Settings.model_fields)
    assert all(row.meaning.endswith(".") for row in rows)
    assert "hidden" not in repr(rows)
    assert "hidden" not in repr(settings.admin_key)
    assert "postgresql://me:(secret)@db/headwater" in repr(rows)


def test_every_limit_of_workflows_is_a_setting() -> None:
    settings = load_settings(max_result_bytes=2_000_000, max_sleep_days=30)
    listed = {item.name for item in describe(settings)}
    assert set(Limits.__struct_fields__) <= listed
    assert settings.limits == Limits(max_result_bytes=2_000_000, max_sleep_days=30)
    assert load_settings().limits == Limits()


# --- what is refused, or warned of, where other machines can reach it


def exposed(**more: object) -> Settings:
    own = {name.removeprefix(PREFIX).lower(): value for name, value in SECRETS.items()}
    return load_settings(host="0.0.0.0", **own, **more)


TOKENS = {
    "jwks": "https://issuer.example/keys",
    "jwt_issuer": "https://issuer.example",
    "jwt_audience": "rows",
}


@pytest.mark.parametrize(
    ("host", "jwks"),
    [
        ("0.0.0.0", "http://issuer.example/keys"),
        ("0.0.0.0", "http://127.0.0.1:9000/keys"),
        ("127.0.0.1", "http://issuer.example/keys"),
        ("127.0.0.1", "http://10.0.0.1/keys"),
    ],
)
def test_keys_of_tokens_over_http_are_for_loopback_alone(
    monkeypatch: pytest.MonkeyPatch, host: str, jwks: str
) -> None:
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(**{**TOKENS, "jwks": jwks, "host": host})
    (line,) = caught.value.problems
    assert line.startswith("HEADWATER_JWKS: expected https:// or a file")
    assert jwks in line


@pytest.mark.parametrize("jwks", ["https://issuer.example/keys", "keys.json"])
def test_keys_of_tokens_over_https_or_of_a_file_are_taken_anywhere(jwks: str) -> None:
    assert exposed(**{**TOKENS, "jwks": jwks}).jwks == jwks


def test_keys_of_tokens_over_http_are_taken_within_this_machine() -> None:
    assert load_settings(jwks="http://127.0.0.1:9000/keys").jwks


def test_tokens_need_issuer_and_audience_where_others_reach_the_gateway() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        exposed(jwks="https://issuer.example/keys")
    (problem,) = caught.value.problems
    first, second = problem.splitlines()
    assert first.startswith("HEADWATER_JWT_ISSUER: expected")
    assert second.startswith("HEADWATER_JWT_AUDIENCE: expected the audience")
    with pytest.raises(SettingsInvalid, match="HEADWATER_JWT_AUDIENCE"):
        exposed(**{**TOKENS, "jwt_audience": ""})
    assert load_settings(jwks="keys.json").jwt_audience == ""


@pytest.mark.parametrize(
    "weak",
    [
        "aaaaaaaaaaaaaaaa",
        "abababababababab",
        "changemechangeme",
        "admin-password-1234",
        "Headwater-Admin-Key",
        "1234567890123456",
        "abcdefghijklmnop",
        "PASSWORD_password_2024",
        "hunter2hunter2hunter2",
    ],
)
def test_keys_that_can_be_guessed_are_for_loopback_alone(weak: str) -> None:
    assert revealed(load_settings(admin_key=weak).admin_key) == (weak,)
    own = {name.removeprefix(PREFIX).lower(): value for name, value in SECRETS.items()}
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(**{**own, "host": "0.0.0.0", "admin_key": weak})
    (line,) = caught.value.problems
    assert "set HEADWATER_ADMIN_KEY to secrets of your own" in line
    assert weak not in line


def test_the_key_of_ticks_is_held_to_the_same_rule() -> None:
    with pytest.raises(SettingsInvalid, match="HEADWATER_TICK_KEY: shorter than 16 characters"):
        exposed(tick_key="k3Yq8zPw")


@given(st.binary(min_size=8, max_size=32))
def test_a_key_of_random_bytes_is_not_called_weak(key: bytes) -> None:
    digest = hashlib.sha256(key).digest()
    assert weakness_of(digest.hex()[:16]) is None
    assert weakness_of(base64.b64encode(digest).decode()[:16]) is None


@pytest.mark.parametrize(
    ("settings", "variables", "named"),
    [
        ({"terra_api": "http://terra.example/v2", "terra_api_key": "k"}, {}, "HEADWATER_TERRA_API"),
        ({"terra_api": "http://terra.example/v2"}, {}, ""),
        ({"terra_api": "http://127.0.0.1:80/v2", "terra_api_key": "k"}, {}, ""),
        ({"blobs": "s3://b"}, {"AWS_ENDPOINT_URL": "http://minio:9000"}, "AWS_ENDPOINT_URL"),
        ({"blobs": "s3://b"}, {"AWS_ENDPOINT_URL": "http://localhost:9000"}, ""),
        ({}, {"AWS_ENDPOINT_URL": "http://minio:9000"}, ""),
        ({"postgres": "postgresql://me:pw@db/rows"}, {}, "HEADWATER_POSTGRES"),
        ({"postgres": "postgresql://me:pw@db:5432/rows?sslmode=prefer"}, {}, "HEADWATER_POSTGRES"),
        ({"postgres": "host=db dbname=rows"}, {}, "HEADWATER_POSTGRES"),
        ({"postgres": "postgresql://me:pw@db/rows?sslmode=verify-full"}, {}, ""),
        ({"postgres": "host=db sslmode='require'"}, {}, ""),
        ({"postgres": "postgresql://me:pw@[::1]:5432/rows"}, {}, ""),
        ({"postgres": "postgresql:///rows?host=/run/postgresql"}, {}, ""),
        ({"postgres": "host=/run/postgresql"}, {}, ""),
        ({"kafka": "k1:9092", "kafka_sasl": "PLAIN"}, {}, "HEADWATER_KAFKA_SASL"),
        ({"kafka": "127.0.0.1:9092", "kafka_sasl": "PLAIN"}, {}, ""),
        ({"kafka": "k1:9092", "kafka_sasl": "PLAIN", "kafka_tls": True}, {}, ""),
        ({"kafka_token_url": "http://issuer.example/token"}, {}, "HEADWATER_KAFKA_TOKEN_URL"),
    ],
)
def test_what_is_sent_without_tls_is_warned_of(
    settings: dict[str, object], variables: dict[str, str], named: str
) -> None:
    lines = list(clear_text_warnings(load_settings(**settings), variables))
    assert [line.partition(" ")[0] for line in lines] == ([named] if named else [])


def test_endpoints_on_loopback_are_for_a_laptop() -> None:
    assert Settings().loopback_endpoints
    for behind in (
        Settings(trusted_proxies=(ip_network("127.0.0.0/8"),)),
        Settings(allowed_hosts=("flows.example.com",)),
    ):
        assert not behind.loopback_endpoints
