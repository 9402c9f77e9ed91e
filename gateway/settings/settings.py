"""All settings of Headwater, with their descriptions; `environment` reads and shows them."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from headwater.gateway.settings.deployments import DeploymentSettings
from headwater.gateway.settings.exposure import (
    DEVELOPMENT_ISSUER,
    DEVELOPMENT_SECRETS,
    SECRET_MIN,
    is_loopback,
    is_plain_http,
    redacted,
    weakness_of,
)
from headwater.gateway.settings.monitoring import MonitoringSettings
from headwater.gateway.settings.patterns import HOOKS, LABEL, LABEL_OR_NONE, URL_OR_NONE
from headwater.gateway.settings.projects import ProjectSettings
from headwater.gateway.settings.replays import ReplaySettings
from headwater.gateway.settings.sign_in import SignInSettings
from headwater.gateway.settings.terra import TerraSettings
from headwater.gateway.settings.users import UserSettings
from headwater.gateway.settings.workflows import OwnershipSettings, WorkflowSettings

_SERVER: Final = re.compile(r"[^\s,@/]+:[0-9]{1,5}")


class KafkaSettings(BaseSettings):
    """Addresses and authentication of Kafka."""

    kafka: str = Field(
        default="",
        description="Kafka brokers as host:port, separated by commas; empty starts one here.",
    )
    kafka_port: int = Field(
        default=19092, ge=0, le=65535, description="Port of the embedded Kafka; 0 chooses one."
    )
    kafka_tls: bool = Field(default=False, description="Whether to connect to brokers with TLS.")
    kafka_tls_ca: str = Field(
        default="",
        description="File of the certificates that brokers are verified with, in PEM; empty uses "
        "those of the operating system.",
    )
    kafka_tls_certificate: str = Field(
        default="",
        description="File of the clients' certificate, in PEM; empty for none.",
    )
    kafka_tls_key: str = Field(
        default="",
        description="File of that certificate's private key; empty uses the certificate's file.",
    )
    kafka_tls_key_password: SecretStr = Field(
        default=SecretStr(""), description="Password of that key, if it is encrypted."
    )
    kafka_tls_check_hostname: bool = Field(
        default=True,
        description="Whether a broker's certificate must name the host that was connected to.",
    )
    kafka_sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        default="",
        description="Authentication of clients: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 with user "
        "and password, OAUTHBEARER with a token; empty for none, or by certificate.",
    )
    kafka_user: str = Field(default="", description="User of PLAIN and SCRAM.")
    kafka_password: SecretStr = Field(
        default=SecretStr(""), description="Password of PLAIN and SCRAM."
    )
    kafka_token_file: str = Field(
        default="",
        description="File of the token of OAUTHBEARER, read for each connection; replace the token "
        "before it expires.",
    )
    kafka_token_url: str = Field(
        default="",
        description="Token endpoint of an OIDC provider that issues the token of OAUTHBEARER.",
    )
    kafka_token_client: str = Field(default="", description="Client id at the token endpoint.")
    kafka_token_secret: SecretStr = Field(
        default=SecretStr(""), description="Client secret at the token endpoint."
    )
    kafka_token_scope: str = Field(
        default="", description="Scope of the requested token; empty names none."
    )

    @field_validator("kafka")
    @classmethod
    def _of_servers(cls, value: str) -> str:
        servers = [server.strip() for server in value.split(",")] if value.strip() else []
        if not all(map(_SERVER.fullmatch, servers)):
            raise PydanticCustomError("not_servers", "")
        return ",".join(servers)


# -- tokens of users


# -- all settings

PREFIX: Final = "HEADWATER_"
#: The app of the built-in workflows.
BUILTIN_APP: Final = "headwater"
#: The name of an environment variable; `*` matches any characters.
VARIABLE: Final = re.compile(r"[A-Za-z_*][A-Za-z0-9_*]*")

Port = Annotated[int, Field(ge=0, le=65535)]


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


#: Keys or signing secrets, separated by commas.
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split)]


#: Names, separated by commas.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _read_networks(value: object) -> object:
    parts = _split(value)
    try:
        return tuple(map(ip_network, parts)) if isinstance(parts, tuple) else value
    except ValueError as error:
        raise PydanticCustomError("not_networks", "") from error


#: Networks, separated by commas.
Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...], NoDecode, BeforeValidator(_read_networks)
]


#: Least number of characters of a key.
_KEY_LENGTH_MIN: Final = 8
_SEVERAL: Final = "Several are separated by commas: all are accepted, commands send the first."


def _keys(name: str, description: str) -> Any:  # noqa: ANN401 (a field, as pydantic has it)
    """Return the field of keys, which defaults to their public development key."""
    known = (SecretStr(DEVELOPMENT_SECRETS[name]),)
    return Field(default=known, min_length=1, description=f"{description} {_SEVERAL}")


class Settings(
    KafkaSettings,
    TerraSettings,
    UserSettings,
    WorkflowSettings,
    DeploymentSettings,
    MonitoringSettings,
    OwnershipSettings,
    ProjectSettings,
    ReplaySettings,
    SignInSettings,
):
    """All settings; every field describes its meaning and unit."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=None, frozen=True, extra="forbid")

    postgres: str = Field(
        default="",
        description="Postgres as postgresql://user:password@host/database; empty starts an "
        "embedded one.",
    )
    steps_postgres: str = Field(
        default="",
        description="Login for the SQL of steps, in the same database; empty uses the one that "
        "`headwater migrate` created.",
    )
    postgres_port: Port = Field(
        default=15432, description="Port of the embedded Postgres; 0 chooses a free one."
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on; anything but loopback needs secrets of your own.",
    )
    port: Port = Field(default=8080, description="Port of the gateway.")
    processes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Processes that `headwater serve` and `headwater worker` start, and `headwater "
        "up` of each kind; 0 is one, and for `headwater up` a number by cores.",
    )
    data_dir: Path = Field(
        default=Path(".headwater"),
        description="Folder of the data on this machine: of the embedded Kafka and Postgres, "
        "and the stores of workers' partitions, which may be deleted while workers are stopped.",
    )
    state_memory_mib: int = Field(
        default=256,
        ge=8,
        le=1024 * 1024,
        description="Memory of a worker for the state of all its partitions, in MiB; the "
        "rest is on disk.",
    )
    terra_secrets: Secrets = Field(
        default=(SecretStr(DEVELOPMENT_SECRETS["terra_secrets"]),),
        min_length=1,
        description="Signing secrets of Terra, separated by commas; the first is current, the "
        "others are still accepted.",
    )
    sources: str = Field(
        default="",
        description="File of sources, in TOML: who posts deliveries, how they are signed, and "
        "which provider reads them; or which topics of other programs are read. Empty makes every "
        "provider a source.",
    )
    schema_registry: str = Field(
        default="",
        description="URL of the Confluent-compatible schema registry for topics in Avro; user and "
        "password may be part of it.",
    )
    admin_key: Secrets = _keys(
        "admin_key", "Key of operators, as Authorization: Bearer or x-admin-key."
    )
    read_key: Secrets = _keys("read_key", "Key of readers, as Authorization: Bearer or x-api-key.")
    workflow_key: Secrets = _keys(
        "workflow_key", "Key of the workflow service, as Authorization: Bearer or x-api-key."
    )
    world_key: Secrets = _keys(
        "world_key",
        "Key of remote programs whose runs are here, for /v1/world, as "
        "Authorization: Bearer or x-api-key.",
    )
    tick_key: Secrets = Field(
        default=(),
        description="Key for sending ticks, as Authorization: Bearer or x-api-key; without one "
        "they are refused. Several are separated by commas.",
    )
    key_rate_limit: int = Field(
        default=0,
        ge=0,
        description="Requests per minute of a key, in each process of the gateway; 0 for no limit. "
        "An API key may have a limit of its own.",
    )
    workflow_hooks: str = Field(
        default="",
        pattern=HOOKS,
        description="Authorization of workflow requests, as package.module:attribute; empty "
        "requires only the key of the workflow service.",
    )
    user_prefix: str = Field(
        default="user_",
        description="Prefix of your users' ids: references of deliveries without it name no user. "
        "Empty accepts all; then every reference must be a user's id.",
    )
    park_for_s: int = Field(
        default=86_400,
        ge=1,
        description="Seconds a delivery waits for its connection before it is a dead letter.",
    )
    partitions: int = Field(
        default=4, ge=1, le=1000, description="Partitions of newly created topics."
    )
    replication: int = Field(default=1, ge=1, le=9, description="Replicas of newly created topics.")
    append_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Seconds that a webhook waits for Kafka before it is answered 503.",
    )
    max_body_bytes: int = Field(
        default=10 * 1024 * 1024,
        ge=1,
        le=10 * 1024 * 1024,
        description="Largest body of a request, in bytes.",
    )
    allowed_hosts: Names = Field(
        default=(),
        description="Host names of the gateway, separated by commas, in addition to those of "
        "loopback; empty allows any unless it listens on loopback. Deliveries may use any name.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="Networks of proxies in front, as 10.0.0.0/8, separated by commas; the "
        "address that they name in X-Forwarded-For counts as the sender.",
    )
    endpoint_networks: Networks = Field(
        default=(), description="Private networks that may get notifications, as 10.0.0.0/8."
    )
    audit_keys: Secrets = Field(
        default=(),
        description="Keys of the hourly checkpoints of the audit log, separated by commas: the "
        "first signs, `headwater audit verify` accepts any; empty for unsigned checkpoints.",
    )
    hook_keys: Secrets = Field(
        default=(),
        description="Keys of hooks, separated by commas: the first signs new URLs, the gateway "
        "accepts those of any; empty for no hooks. For the gateway and the workers.",
    )
    public_url: str = Field(
        default="",
        pattern=URL_OR_NONE,
        description="URL at which others reach the gateway, such as https://flows.example.com; "
        "URLs of hooks begin with it. Empty uses the gateway's address.",
    )
    app_id: str = Field(
        default="headwater",
        pattern=LABEL,
        description="Name of the pipeline; its Kafka consumer groups begin with it.",
    )
    app: str = Field(
        default="",
        description="Workflows to run, as package.module or package.module:name; several apps are "
        "separated by commas; headwater runs only the built-in workflows; empty runs none.",
    )
    app_environment: Names = Field(
        default=(),
        description="Environment variables that apps see besides PATH, HOME, PYTHON* and the like, "
        "separated by commas, * for any characters: AWS_*,STRIPE_KEY. Never Headwater's own.",
    )
    rules: str = Field(
        default="",
        description="File of rules, in TOML, by which deliveries start and signal the workflows of "
        "the app; empty for no rules. Pipeline and workflow workers read it when they start.",
    )
    member: str = Field(
        default="",
        pattern=LABEL_OR_NONE,
        description="Unique name that a worker or projector keeps over restarts: its next process "
        "takes its partitions at once instead of after the session timeout.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level that is logged."
    )
    log_format: Literal["auto", "human", "json"] = Field(
        default="auto",
        description="Format of log lines: human, json, or auto: human at a terminal, else json.",
    )

    @field_validator("admin_key", "read_key", "workflow_key", "world_key", "tick_key")
    @classmethod
    def _long_enough(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(len(key.get_secret_value()) < _KEY_LENGTH_MIN for key in keys):
            raise PydanticCustomError("string_too_short", "", {"min_length": _KEY_LENGTH_MIN})
        return keys

    @field_validator("app")
    @classmethod
    def _unique(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")] if value else []
        if names != [BUILTIN_APP] and len({"", BUILTIN_APP, *names}) < len(names) + 2:
            raise PydanticCustomError("not_apps", "")
        return ",".join(names)

    @field_validator("app_environment")
    @classmethod
    def _of_apps(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not VARIABLE.fullmatch(name) or name.startswith(PREFIX):
                raise PydanticCustomError("not_variables", "")
        return names

    @field_validator("postgres", "steps_postgres")
    @classmethod
    def _of_postgres(cls, value: str) -> str:
        # A text without a scheme is a list such as host=… dbname=…, which libpq accepts as well.
        is_list = "://" not in value and ("=" in value or not value)
        if not is_list and urlsplit(value).scheme not in {"postgresql", "postgres"}:
            raise PydanticCustomError("not_postgres", "")
        return value

    @model_validator(mode="after")
    def _refuse_known_secrets(self) -> "Settings":
        if is_loopback(self.host):
            return self
        secrets = {
            name: getattr(self, name)
            for name in (*DEVELOPMENT_SECRETS, "tick_key", "audit_keys", "hook_keys")
        }
        if self.sources:
            del secrets["terra_secrets"]  # The file of sources may have no Terra.
        weak = {
            PREFIX + name.upper(): why
            for name, value in secrets.items()
            for secret in revealed(value)
            if secret and (why := weakness_of(secret, DEVELOPMENT_SECRETS.values()))
        }
        if weak:
            reasons = ", ".join(f"{name}: {why}" for name, why in weak.items())
            raise ValueError(
                f"{PREFIX}HOST: expected a loopback address while secrets can be guessed "
                f"({reasons}), found '{self.host}'; set {', '.join(weak)} to secrets of your "
                f"own, of at least {SECRET_MIN} characters, such as `openssl rand -hex 24` prints"
            )
        return self

    @model_validator(mode="after")
    def _refuse_forgeable_tokens(self) -> "Settings":
        if not self.jwks:
            return self
        exposed = not is_loopback(self.host)
        if is_plain_http(self.jwks) or (exposed and self.jwks.startswith("http://")):
            raise ValueError(
                f"{PREFIX}JWKS: expected https:// or a file (http:// is accepted while both the "
                f"issuer and {PREFIX}HOST are on loopback), found '{redacted(self.jwks)}' while "
                f"{PREFIX}HOST is '{self.host}'; anyone who can change the keys in transit can "
                "sign as any user"
            )
        problems = []
        if exposed and self.jwt_issuer in ("", DEVELOPMENT_ISSUER):
            problems.append(
                f"{PREFIX}JWT_ISSUER: expected the name of an issuer of your own while "
                f"{PREFIX}HOST is '{self.host}', which others can reach, found "
                f"'{self.jwt_issuer}'"
            )
        if exposed and not self.jwt_audience:
            problems.append(
                f"{PREFIX}JWT_AUDIENCE: expected the audience that your tokens name as aud while "
                f"{PREFIX}HOST is '{self.host}', which others can reach, found nothing; without "
                "one, tokens that the issuer made for other services are accepted"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @model_validator(mode="after")
    def _refuse_incomplete_sign_in(self) -> "Settings":
        problems = self.oidc_problems()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def apps(self) -> tuple[str, ...]:
        """The apps with workflows to run, without the built-in one."""
        return tuple(self.app.split(",")) if self.app not in {"", BUILTIN_APP} else ()

    @property
    def loopback_endpoints(self) -> bool:
        """Whether notifications may be posted to this machine, as on a laptop.

        Not behind a proxy on the same machine: then others have keys, and loopback has services
        that are not theirs.
        """
        return is_loopback(self.host) and not (self.trusted_proxies or self.allowed_hosts)

    @property
    def blobs_at(self) -> str:
        """Location of blobs, for the function `blobs_at`."""
        blobs = self.blobs or str(self.data_dir / "blobs")
        return f"{blobs.rstrip('/')}/{self.topic_prefix}" if self.topic_prefix else blobs

    @property
    def state_dir(self) -> Path:
        """Folder of the state of workers: absolute, as hosts of code run in another folder."""
        return (self.data_dir / "state" / self.topic_prefix).absolute()

    def secrets_of(self, provider: str) -> tuple[str, ...]:
        """Return a provider's signing secrets in the clear, the current one first; maybe none."""
        return revealed(getattr(self, secrets_name(provider), ()))


def secrets_name(provider: str) -> str:
    """Return the name of the setting of a provider's signing secrets."""
    return f"{provider.replace('-', '_')}_secrets"


def secrets_variable(provider: str) -> str:
    """Return the variable of a provider's signing secrets."""
    return PREFIX + secrets_name(provider).upper()


def revealed(value: object) -> tuple[str, ...]:
    """Return a value, or several, as text; secrets in the clear."""
    many = value if isinstance(value, tuple) else (value,)
    return tuple(
        item.get_secret_value() if isinstance(item, SecretStr) else str(item) for item in many
    )
