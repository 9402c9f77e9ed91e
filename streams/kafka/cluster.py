"""The Kafka cluster: addresses of its brokers, and how clients connect and authenticate.

All Kafka clients of the system are created from this value.
"""

from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Literal, TypeAlias

from aiokafka.abc import AbstractTokenProvider
from typing_extensions import override

from headwater.streams.kafka.aiokafka_patches import patch_aiokafka

PasswordMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """SASL authentication with a password."""

    mechanism: PasswordMechanism
    user: str
    password: str = field(repr=False)

    def options(self) -> dict[str, Any]:
        """Return the options for clients of aiokafka."""
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """SASL authentication with a token: OAUTHBEARER."""

    tokens: AbstractTokenProvider

    def options(self) -> dict[str, Any]:
        """Return the options for clients of aiokafka."""
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": self.tokens}


Login: TypeAlias = PasswordLogin | TokenLogin


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kafka cluster.

    Attributes:
        servers: Some of its brokers as host:port, separated by commas; a client learns the others
            from them.
        tls: TLS settings; None for connections in the clear.
        login: How clients authenticate; None for anonymous clients.
    """

    servers: str
    tls: SSLContext | None = None
    login: Login | None = None

    @property
    def protocol(self) -> str:
        """Return Kafka's name of the security protocol."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.login is None else f"SASL_{transport}"

    def options(self) -> dict[str, Any]:
        """Return the options for clients of aiokafka; patches aiokafka first."""
        patch_aiokafka()
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": self.protocol,
            "ssl_context": self.tls,
            **(self.login.options() if self.login else {}),
        }

    @override
    def __str__(self) -> str:
        return self.servers
