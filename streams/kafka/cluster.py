"""The Kafka cluster: where its brokers are, and how clients reach them and say who they are.

Every client of the house is made from this one value.
"""

from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Literal, TypeAlias

from aiokafka.abc import AbstractTokenProvider
from typing_extensions import override

from headwater.streams.kafka.aiokafka_patches import mend

PasswordMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """Clients say who they are by SASL, with a password."""

    mechanism: PasswordMechanism
    user: str
    password: str = field(repr=False)

    def options(self) -> dict[str, Any]:
        """What each client of aiokafka is given of it."""
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """Clients say who they are by SASL, with a token: OAUTHBEARER."""

    tokens: AbstractTokenProvider

    def options(self) -> dict[str, Any]:
        """What each client of aiokafka is given of it."""
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": self.tokens}


Login: TypeAlias = PasswordLogin | TokenLogin


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster.

    Shape:  servers are some of its brokers as host:port, separated by commas; a client learns of
            the others from them. Without `tls` and `login` everything is in the clear, and clients
            are anonymous.
    """

    servers: str
    tls: SSLContext | None = None
    login: Login | None = None

    @property
    def protocol(self) -> str:
        """The protocol by its name in Kafka."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.login is None else f"SASL_{transport}"

    def options(self) -> dict[str, Any]:
        """What each client of aiokafka is given; from then on aiokafka is mended."""
        mend()
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": self.protocol,
            "ssl_context": self.tls,
            **(self.login.options() if self.login else {}),
        }

    @override
    def __str__(self) -> str:
        return self.servers
