"""Every setting of Headwater, in one documented type; `environment` reads and shows them."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode, SettingsConfigDict

from headwater.gateway.exposure import SECRET_MIN, is_plain_http, weakness_of
from headwater.gateway.kafka_settings import KafkaSettings
from headwater.gateway.loopback import (
    DEVELOPMENT_ISSUER,
    DEVELOPMENT_SECRETS,
    is_loopback,
)
from headwater.gateway.ownership_settings import OwnershipSettings
from headwater.gateway.patterns import HOOKS, LABEL, LABEL_OR_NONE
from headwater.gateway.redaction import redacted
from headwater.gateway.terra_settings import TerraSettings
from headwater.gateway.user_settings import UserSettings
from headwater.gateway.workflow_settings import WorkflowSettings

PREFIX: Final = "HEADWATER_"
#: The app of the workflows that come with Headwater.
HOUSE_APP: Final = "headwater"
#: The name of an environment variable, or several of them with `*`.
VARIABLE: Final = re.compile(r"[A-Za-z_*][A-Za-z0-9_*]*")

Port = Annotated[int, Field(ge=0, le=65535)]


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


#: Signing secrets, separated by commas.
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


def _key(name: str, description: str) -> Any:  # noqa: ANN401 (a field, as pydantic has it)
    """A key, which on loopback is one that everybody knows."""
    known = SecretStr(DEVELOPMENT_SECRETS[name])
    return Field(default=known, min_length=8, description=description)


class Settings(KafkaSettings, TerraSettings, UserSettings, WorkflowSettings, OwnershipSettings):
    """All settings; every field says what it means and in which unit."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=None, frozen=True, extra="forbid")

    postgres: str = Field(
        default="",
        description="Postgres as postgresql://user:password@host/database; empty runs one "
        "embedded.",
    )
    steps_postgres: str = Field(
        default="",
        description="Login for the SQL of steps, in that same database; empty takes the one that "
        "`headwater migrate` has made.",
    )
    postgres_port: Port = Field(
        default=15432, description="Port of the embedded Postgres; 0 takes a free one."
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on; anything but loopback needs secrets of your own.",
    )
    port: Port = Field(default=8080, description="Port of the gateway.")
    data_dir: Path = Field(
        default=Path(".headwater"),
        description="Folder of the data on this machine: that of the embedded Kafka and Postgres, "
        "and what workers keep of their partitions, which may be deleted while they are stopped.",
    )
    state_memory_mib: int = Field(
        default=256,
        ge=8,
        le=1024 * 1024,
        description="Memory that a worker has for the state of all its partitions, in MiB; the "
        "rest of it lies on disk.",
    )
    terra_secrets: Secrets = Field(
        default=(SecretStr(DEVELOPMENT_SECRETS["terra_secrets"]),),
        min_length=1,
        description="Signing secrets of Terra, separated by commas; the first is current, the "
        "others are still accepted.",
    )
    sources: str = Field(
        default="",
        description="File of sources, in TOML: who posts deliveries, how they are signed, and who "
        "reads them; empty takes every provider as a source of its own.",
    )
    admin_key: SecretStr = _key("admin_key", "Key of operators, in the header x-admin-key.")
    read_key: SecretStr = _key("read_key", "Key of readers, as Authorization: Bearer.")
    workflow_key: SecretStr = _key(
        "workflow_key", "Key of the workflow service, as Authorization: Bearer or x-api-key."
    )
    world_key: SecretStr = _key(
        "world_key",
        "Key of programs elsewhere whose runs are here, for /v1/world, as "
        "Authorization: Bearer or x-api-key.",
    )
    workflow_hooks: str = Field(
        default="",
        pattern=HOOKS,
        description="Who may do what with workflows, as package.module:attribute; empty asks for "
        "the key of the workflow service alone.",
    )
    user_prefix: str = Field(
        default="user_",
        min_length=1,
        description="What a reference id of one of your users begins with.",
    )
    park_for_s: int = Field(
        default=86_400,
        ge=1,
        description="Seconds a delivery waits for its connection before it is a dead letter.",
    )
    partitions: int = Field(
        default=4, ge=1, le=1000, description="Partitions of every topic that is newly made."
    )
    replication: int = Field(
        default=1, ge=1, le=9, description="Copies of every topic that is newly made."
    )
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
        description="Names that the gateway may be called by, separated by commas, beside those of "
        "loopback; off loopback empty allows any. Deliveries may call it by any name.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="Networks of proxies in front, as 10.0.0.0/8, separated by commas; whom they "
        "name in X-Forwarded-For counts as the sender.",
    )
    project: str = Field(
        default="default",
        pattern=LABEL,
        description="Name of the project; entries of the audit log and keys of idempotency are "
        "its.",
    )
    app_id: str = Field(
        default="headwater",
        pattern=LABEL,
        description="Name of the pipeline; its Kafka consumer groups begin with it.",
    )
    app: str = Field(
        default="",
        description="Workflows to run, as package.module or package.module:name; of several apps, "
        "separated by commas; headwater runs those that come with it alone; empty runs none.",
    )
    app_environment: Names = Field(
        default=(),
        description="Environment variables that apps see besides PATH, HOME, PYTHON* and the like, "
        "separated by commas, * for any characters: AWS_*,STRIPE_KEY. No app sees Headwater's own.",
    )
    rules: str = Field(
        default="",
        description="File of rules, in TOML, by which deliveries start and signal the workflows of "
        "the app; empty has none. Workers of both kinds read it when they start.",
    )
    member: str = Field(
        default="",
        pattern=LABEL_OR_NONE,
        description="Name that a worker or projector keeps over restarts, no two the same: the "
        "next one takes its partitions at once instead of after the session timeout.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe message that is logged."
    )

    @field_validator("app")
    @classmethod
    def _each_once(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")] if value else []
        if names != [HOUSE_APP] and len({"", HOUSE_APP, *names}) < len(names) + 2:
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
        # What has no scheme is a list such as host=… dbname=…, which libpq takes as well.
        is_list = "://" not in value and ("=" in value or not value)
        if not is_list and urlsplit(value).scheme not in {"postgresql", "postgres"}:
            raise PydanticCustomError("not_postgres", "")
        return value

    @model_validator(mode="after")
    def _refuse_known_secrets(self) -> "Settings":
        if is_loopback(self.host):
            return self
        found = {name: getattr(self, name) for name in (*DEVELOPMENT_SECRETS, "tick_key")}
        if self.sources:
            del found["terra_secrets"]  # The file says whether there is Terra at all.
        weak = {
            PREFIX + name.upper(): why
            for name, value in found.items()
            for secret in revealed(value)
            if secret and (why := weakness_of(secret, DEVELOPMENT_SECRETS.values()))
        }
        if weak:
            whys = ", ".join(f"{name}: {why}" for name, why in weak.items())
            raise ValueError(
                f"{PREFIX}HOST: expected a loopback address while secrets can be guessed ({whys}), "
                f"found '{self.host}'; set {', '.join(weak)} to secrets of your own, of at least "
                f"{SECRET_MIN} characters, such as `openssl rand -hex 24` prints"
            )
        return self

    @model_validator(mode="after")
    def _refuse_tokens_that_others_can_make(self) -> "Settings":
        if not self.jwks:
            return self
        exposed = not is_loopback(self.host)
        if is_plain_http(self.jwks) or (exposed and self.jwks.startswith("http://")):
            raise ValueError(
                f"{PREFIX}JWKS: expected https:// or a file (http:// is taken while both the "
                f"issuer and {PREFIX}HOST are on loopback), found '{redacted(self.jwks)}' while "
                f"{PREFIX}HOST is '{self.host}'; who can change the keys on their way can sign as "
                "any user"
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
                "one, tokens that the issuer made for other services are taken"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def apps(self) -> tuple[str, ...]:
        """The apps whose workflows are run, beside those that come with Headwater."""
        return tuple(self.app.split(",")) if self.app not in {"", HOUSE_APP} else ()

    @property
    def blobs_at(self) -> str:
        """Where blobs are, as `blobs_at` takes it."""
        return self.blobs or str(self.data_dir / "blobs")

    @property
    def state_dir(self) -> Path:
        """Where workers keep the state of their partitions."""
        return self.data_dir / "state"

    def secrets_of(self, provider: str) -> tuple[str, ...]:
        """A provider's signing secrets in the clear, the current one first; none if none is set."""
        return revealed(getattr(self, secrets_name(provider), ()))


def secrets_name(provider: str) -> str:
    """The name of the setting that holds a provider's signing secrets."""
    return f"{provider.replace('-', '_')}_secrets"


def secrets_variable(provider: str) -> str:
    """The variable that sets a provider's signing secrets."""
    return PREFIX + secrets_name(provider).upper()


def revealed(value: object) -> tuple[str, ...]:
    """A value, or several, as text; secrets in the clear."""
    many = value if isinstance(value, tuple) else (value,)
    return tuple(one.get_secret_value() if isinstance(one, SecretStr) else str(one) for one in many)
