"""The Kafka cluster of the settings.

Contradictory settings are errors that name the setting, raised before anything connects.
"""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from headwater.gateway.settings.addresses import LOOPBACK, SettingsUnusable
from headwater.gateway.settings.exposure import is_loopback
from headwater.gateway.settings.settings import PREFIX, Settings
from headwater.schemas.topics import TOPIC_NAME_MAX, TOPICS, is_own_topic
from headwater.streams.kafka.cluster import Cluster, Login, PasswordLogin, TokenLogin

if TYPE_CHECKING:
    from headwater.streams.kafka.tokens import EndpointTokens, FileTokens

_TLS: Final = ("kafka_tls_ca", "kafka_tls_certificate", "kafka_tls_key", "kafka_tls_key_password")
_PASSWORD: Final = ("kafka_user", "kafka_password")
_ENDPOINT: Final = ("kafka_token_url", "kafka_token_client", "kafka_token_secret")
_TOKEN: Final = ("kafka_token_file", *_ENDPOINT, "kafka_token_scope")


def cluster_of(settings: Settings) -> Cluster:
    """Return the configured Kafka, else the embedded one on this machine.

    Raises:
        SettingsUnusable: A setting is invalid.
    """
    if not settings.kafka and not settings.kafka_port:
        raise _wrong("kafka", "host:port", "nothing and a free port")
    if not settings.kafka and (settings.kafka_tls or settings.kafka_sasl):
        raise _wrong("kafka", "the brokers to be reached by TLS or SASL", "nothing")
    servers = settings.kafka or f"{LOOPBACK}:{settings.kafka_port}"
    _refuse_unused(settings)
    tls = _tls(settings) if settings.kafka_tls else None
    if settings.kafka_sasl and tls is None:
        _require_tls(servers)
    return Cluster(servers, tls, _login(settings), _prefix(settings))


def _prefix(settings: Settings) -> str:
    prefix = settings.topic_prefix
    longest = max((topic.name for topic in TOPICS), key=len)
    if len(prefix + longest) > TOPIC_NAME_MAX:
        raise _wrong(
            "topic_prefix",
            f"at most {TOPIC_NAME_MAX - len(longest)} characters, because Kafka allows "
            f"{TOPIC_NAME_MAX} in {prefix}{longest}",
            f"{len(prefix)}",
        )
    taken = [topic.name for topic in TOPICS if is_own_topic("", prefix + topic.name)]
    if prefix and taken:
        raise _wrong(
            "topic_prefix",
            "a prefix with which no topic is named like one without",
            f"{prefix + taken[0]!r}",
        )
    return prefix


def _wrong(name: str, expected: str, found: str) -> SettingsUnusable:
    return SettingsUnusable(f"{PREFIX}{name.upper()}: expected {expected}, found {found}")


def _refuse_unused(settings: Settings) -> None:
    """Refuse settings that have no effect: they are mistakes."""
    used = {
        *(_TLS if settings.kafka_tls else ()),
        *(_PASSWORD if settings.kafka_sasl not in ("", "OAUTHBEARER") else ()),
        *(_TOKEN if settings.kafka_sasl == "OAUTHBEARER" else ()),
    }
    for names, needs in (
        (_TLS, f"{PREFIX}KAFKA_TLS=true"),
        (_PASSWORD, f"{PREFIX}KAFKA_SASL=PLAIN or SCRAM-SHA-…"),
        (_TOKEN, f"{PREFIX}KAFKA_SASL=OAUTHBEARER"),
    ):
        for name in names:
            if _text(settings, name) and name not in used:
                raise _wrong(name, f"nothing without {needs}", "something")


def _require_tls(servers: str) -> None:
    for server in servers.split(","):
        if not is_loopback(server.rpartition(":")[0].strip("[]")):
            raise _wrong(
                "kafka_tls", f"true, for {PREFIX}KAFKA_SASL sends secrets to {server}", "false"
            )


def _login(settings: Settings) -> Login | None:
    match settings.kafka_sasl:
        case "":
            return None
        case "OAUTHBEARER":
            return TokenLogin(_tokens(settings))
        case mechanism:
            for name in _PASSWORD:
                _require(settings, name, f"what {mechanism} needs")
            password = settings.kafka_password.get_secret_value()
            return PasswordLogin(mechanism, settings.kafka_user, password)


def _tokens(settings: Settings) -> "FileTokens | EndpointTokens":
    # Slow to import, and rarely needed.
    from headwater.streams.kafka.tokens import EndpointTokens, FileTokens  # noqa: PLC0415

    if settings.kafka_token_file:
        for name in (*_ENDPOINT, "kafka_token_scope"):
            if _text(settings, name):
                raise _wrong(name, f"nothing with {PREFIX}KAFKA_TOKEN_FILE", "something")
        _readable("kafka_token_file", settings.kafka_token_file)
        return FileTokens(Path(settings.kafka_token_file))
    for name in _ENDPOINT:
        _require(settings, name, f"what OAUTHBEARER needs without {PREFIX}KAFKA_TOKEN_FILE")
    url = urlsplit(settings.kafka_token_url)
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
        raise _wrong("kafka_token_url", "https://", repr(f"{url.scheme}://{url.netloc}"))
    return EndpointTokens(
        url=settings.kafka_token_url,
        client_id=settings.kafka_token_client,
        client_secret=settings.kafka_token_secret.get_secret_value(),
        scope=settings.kafka_token_scope,
    )


def _tls(settings: Settings) -> ssl.SSLContext:
    ca = settings.kafka_tls_ca
    if ca:
        _readable("kafka_tls_ca", ca)
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except ssl.SSLError as error:
        raise _wrong("kafka_tls_ca", "certificates in PEM", repr(ca)) from error
    context.check_hostname = settings.kafka_tls_check_hostname
    if settings.kafka_tls_certificate:
        _load_certificate(context, settings)
    elif settings.kafka_tls_key:
        _require(settings, "kafka_tls_certificate", "the certificate of the key that is set")
    return context


def _load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    certificate = settings.kafka_tls_certificate
    key = settings.kafka_tls_key or certificate
    password = settings.kafka_tls_key_password.get_secret_value()
    _readable("kafka_tls_certificate", certificate)
    _readable("kafka_tls_key", key)
    # Checked without the key first, so that an error is not blamed on the key.
    try:
        ssl.create_default_context().load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise _wrong("kafka_tls_certificate", "a certificate in PEM", repr(certificate)) from error
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _wrong(
                "kafka_tls_key", f"the key of {certificate}", f"another one in {key}"
            ) from error
        if password or "ENCRYPTED" in Path(key).read_text("utf-8", "replace"):
            raise _wrong(
                "kafka_tls_key_password", f"the password of {key}", "another one"
            ) from error
        raise _wrong("kafka_tls_key", "a private key in PEM", repr(key)) from error


def _readable(name: str, file: str) -> None:
    try:
        Path(file).open("rb").close()
    except OSError as error:
        raise _wrong(name, "a file", f"{file!r}: {error.strerror}") from error


def _require(settings: Settings, name: str, what: str) -> None:
    if not _text(settings, name):
        raise _wrong(name, what, "nothing")


def _text(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
