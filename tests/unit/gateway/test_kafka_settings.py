"""Settings of Kafka: what does not fit is named before anything connects."""

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from headwater.gateway.settings.addresses import SettingsUnusable
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.environment import (
    SettingsInvalid,
    describe,
    environment,
    load_settings,
)
from headwater.gateway.settings.settings import revealed
from headwater.streams.kafka.cluster import PasswordLogin, TokenLogin
from headwater.streams.kafka.tokens import EndpointTokens, FileTokens

HERE = "127.0.0.1:9092"
LOGIN = {"kafka_sasl": "SCRAM-SHA-512", "kafka_user": "me", "kafka_password": "my password"}
ENDPOINT = {
    "kafka_sasl": "OAUTHBEARER",
    "kafka_token_url": "https://idp.example/token",
    "kafka_token_client": "me",
    "kafka_token_secret": "my secret",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, an encrypted one, another one, and text."""
    folder = tmp_path_factory.mktemp("files")
    authority = trustme.CA()
    leaf, other = authority.issue_cert("client.example"), authority.issue_cert("client.example")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"of the key"),
    )
    for name, content in (
        ("ca", authority.cert_pem.bytes()),
        ("certificate", leaf.cert_chain_pems[0].bytes()),
        ("key", leaf.private_key_pem.bytes()),
        ("encrypted", encrypted),
        ("other-key", other.private_key_pem.bytes()),
        ("text", b"neither\n"),
    ):
        (folder / name).write_bytes(content)
    return folder


def of_files(files: Path, settings: dict[str, str]) -> dict[str, str]:
    return {
        name: str(files / value[1:]) if value.startswith("@") else value
        for name, value in settings.items()
    }


def test_without_settings_everything_is_in_the_clear():
    cluster = cluster_of(load_settings(kafka="kafka-1:9092, kafka-2:9092"))
    assert cluster.servers == "kafka-1:9092,kafka-2:9092"
    assert (cluster.protocol, cluster.tls, cluster.login) == ("PLAINTEXT", None, None)


def test_a_password_is_kept_from_whoever_prints_a_cluster():
    cluster = cluster_of(load_settings(kafka=HERE, **LOGIN))
    assert cluster.login == PasswordLogin("SCRAM-SHA-512", "me", "my password")
    assert "my password" not in repr(cluster)


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka_tls_certificate": "@certificate", "kafka_tls_key": "@key"},
        {
            "kafka_tls_certificate": "@certificate",
            "kafka_tls_key": "@encrypted",
            "kafka_tls_key_password": "of the key",
        },
    ],
)
def test_a_client_may_have_a_certificate(files: Path, settings: dict[str, str]):
    provided = {"kafka_tls": "true", "kafka_tls_ca": "@ca"} | settings
    cluster = cluster_of(load_settings(kafka="kafka-1:9092", **of_files(files, provided)))
    assert cluster.protocol == "SSL"


def test_tokens_come_from_a_file_or_an_endpoint(files: Path):
    token = {"kafka_sasl": "OAUTHBEARER", "kafka_token_file": str(files / "text")}
    for settings, kind in ((token, FileTokens), (ENDPOINT, EndpointTokens)):
        login = cluster_of(load_settings(kafka=HERE, **settings)).login
        assert isinstance(login, TokenLogin)
        assert isinstance(login.tokens, kind)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"kafka": "kafka-1:9092"} | LOGIN,
            "KAFKA_TLS: expected true, for HEADWATER_KAFKA_SASL sends secrets to kafka-1:9092, "
            "found false",
        ),
        ({"kafka": ""} | LOGIN, "KAFKA: expected the brokers to be reached by TLS or SASL, "),
        (
            LOGIN | {"kafka_user": ""},
            "KAFKA_USER: expected what SCRAM-SHA-512 needs, found nothing",
        ),
        (
            {"kafka_password": "my password"},
            "KAFKA_PASSWORD: expected nothing without HEADWATER_KAFKA_SASL=PLAIN or SCRAM-SHA-…, "
            "found something",
        ),
        (
            {"kafka_tls_ca": "@ca"},
            "KAFKA_TLS_CA: expected nothing without HEADWATER_KAFKA_TLS=true, found something",
        ),
        (ENDPOINT | {"kafka_token_client": ""}, "KAFKA_TOKEN_CLIENT: expected what OAUTHBEARER"),
        (
            ENDPOINT | {"kafka_token_url": "http://idp.example/token"},
            "KAFKA_TOKEN_URL: expected https://, found 'http://idp.example'",
        ),
        (
            ENDPOINT | {"kafka_token_file": "@text"},
            "KAFKA_TOKEN_URL: expected nothing with HEADWATER_KAFKA_TOKEN_FILE",
        ),
        (
            {"kafka_sasl": "OAUTHBEARER", "kafka_token_file": "@none"},
            "none': No such file or directory",
        ),
        ({"kafka_tls": "true", "kafka_tls_ca": "@none"}, "KAFKA_TLS_CA: expected a file, found '"),
        ({"kafka_tls": "true", "kafka_tls_ca": "@text"}, "KAFKA_TLS_CA: expected certificates in "),
        (
            {"kafka_tls": "true", "kafka_tls_key": "@key"},
            "KAFKA_TLS_CERTIFICATE: expected the certificate of the key that is set",
        ),
        (
            {"kafka_tls": "true", "kafka_tls_certificate": "@text", "kafka_tls_key": "@key"},
            "KAFKA_TLS_CERTIFICATE: expected a certificate in PEM",
        ),
        (
            {"kafka_tls": "true", "kafka_tls_certificate": "@certificate"},
            "KAFKA_TLS_KEY: expected a private key in PEM",
        ),
        (
            {
                "kafka_tls": "true",
                "kafka_tls_certificate": "@certificate",
                "kafka_tls_key": "@other-key",
            },
            "KAFKA_TLS_KEY: expected the key of ",
        ),
        (
            {
                "kafka_tls": "true",
                "kafka_tls_certificate": "@certificate",
                "kafka_tls_key": "@encrypted",
            },
            "KAFKA_TLS_KEY_PASSWORD: expected the password of ",
        ),
    ],
)
def test_what_does_not_fit_is_named(files: Path, settings: dict[str, str], line: str):
    with pytest.raises(SettingsUnusable) as caught:
        cluster_of(load_settings(**of_files(files, {"kafka": HERE} | settings)))
    assert line in caught.value.message
    assert caught.value.message.startswith("HEADWATER_KAFKA")
    assert "my password" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("kafka", "kafka-1", "expected host:port, several separated by commas, found 'kafka-1'"),
        (
            "kafka",
            "me:hidden@kafka:9092",
            "expected host:port, several separated by commas, found 'me:(secret)@kafka:9092'",
        ),
        ("kafka_tls", "maybe", "expected true or false, found 'maybe'"),
        (
            "kafka_sasl",
            "GSSAPI",
            "expected one of '', 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'OAUTHBEARER', "
            "found 'GSSAPI'",
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_named(name: str, value: str, line: str):
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(**{name: value})
    assert caught.value.problems == (f"HEADWATER_{name.upper()}: {line}",)


class TestSecretsFromFiles:
    def test_a_file_has_the_secret(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "password").write_text("of a file\n")
        (tmp_path / "dsn").write_text("postgresql://me:hidden@db/rows\n")
        monkeypatch.setenv("HEADWATER_KAFKA_PASSWORD_FILE", str(tmp_path / "password"))
        monkeypatch.setenv("HEADWATER_POSTGRES_FILE", str(tmp_path / "dsn"))
        settings = load_settings()
        assert settings.kafka_password.get_secret_value() == "of a file"
        assert settings.postgres == "postgresql://me:hidden@db/rows"
        shown = {item.name: item.value for item in describe(settings)}
        assert shown["kafka_password"] == "(secret)"
        assert shown["postgres"] == "postgresql://me:(secret)@db/rows"

    def test_a_child_process_is_given_the_secret_and_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        (tmp_path / "key").write_text("of a file")
        monkeypatch.setenv("HEADWATER_ADMIN_KEY_FILE", str(tmp_path / "key"))
        for name, value in environment(load_settings()).items():
            monkeypatch.setenv(name, value)
        assert revealed(load_settings().admin_key) == ("of a file",)

    @pytest.mark.parametrize(
        ("variables", "line"),
        [
            (
                {"HEADWATER_ADMIN_KEY_FILE": "/none"},
                "HEADWATER_ADMIN_KEY_FILE: expected a file, found '/none': No such file or "
                "directory",
            ),
            (
                {"HEADWATER_ADMIN_KEY_FILE": "/none", "HEADWATER_ADMIN_KEY": "a long key"},
                "HEADWATER_ADMIN_KEY_FILE: expected nothing with HEADWATER_ADMIN_KEY, found both",
            ),
        ],
    )
    def test_what_does_not_fit_is_named(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], line: str
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SettingsInvalid) as caught:
            load_settings()
        assert caught.value.problems == (line,)
