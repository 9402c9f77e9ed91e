"""The settings of Kafka: where it is, and how its clients say who they are."""

import re
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

_SERVER: Final = re.compile(r"[^\s,@/]+:[0-9]{1,5}")


class KafkaSettings(BaseSettings):
    """Where Kafka is, and how clients reach it."""

    kafka: str = Field(
        default="",
        description="Kafka brokers as host:port, separated by commas; empty runs one embedded.",
    )
    kafka_port: int = Field(
        default=19092, ge=0, le=65535, description="Port of the embedded Kafka; 0 takes a free one."
    )
    kafka_tls: bool = Field(default=False, description="Whether brokers are reached by TLS.")
    kafka_tls_ca: str = Field(
        default="",
        description="File of the certificates that vouch for brokers, in PEM; empty trusts those "
        "of the system.",
    )
    kafka_tls_certificate: str = Field(
        default="",
        description="File of the certificate by which clients say who they are, in PEM; empty has "
        "none.",
    )
    kafka_tls_key: str = Field(
        default="",
        description="File of that certificate's private key; empty takes the certificate's file.",
    )
    kafka_tls_key_password: SecretStr = Field(
        default=SecretStr(""), description="Password of that key, if it is encrypted."
    )
    kafka_tls_check_hostname: bool = Field(
        default=True,
        description="Whether a broker's certificate has to name the host that was asked.",
    )
    kafka_sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        default="",
        description="How clients say who they are: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 with user "
        "and password, OAUTHBEARER with a token; empty for not at all, or by certificate.",
    )
    kafka_user: str = Field(default="", description="User of PLAIN and SCRAM.")
    kafka_password: SecretStr = Field(
        default=SecretStr(""), description="Password of PLAIN and SCRAM."
    )
    kafka_token_file: str = Field(
        default="",
        description="File of the token of OAUTHBEARER, read anew for each connection; whoever "
        "writes it replaces it in time.",
    )
    kafka_token_url: str = Field(
        default="",
        description="Token endpoint of an OIDC provider, asked for the token of OAUTHBEARER.",
    )
    kafka_token_client: str = Field(default="", description="Client id at the token endpoint.")
    kafka_token_secret: SecretStr = Field(
        default=SecretStr(""), description="Client secret at the token endpoint."
    )
    kafka_token_scope: str = Field(
        default="", description="Scope that the token is asked for; empty names none."
    )

    @field_validator("kafka")
    @classmethod
    def _of_servers(cls, value: str) -> str:
        servers = [server.strip() for server in value.split(",")] if value.strip() else []
        if not all(map(_SERVER.fullmatch, servers)):
            raise PydanticCustomError("not_servers", "")
        return ",".join(servers)
