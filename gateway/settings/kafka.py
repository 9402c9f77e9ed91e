"""Settings of Kafka: its addresses and the clients' authentication."""

import re
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

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
