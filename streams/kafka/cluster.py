"""The Kafka cluster: addresses, authentication, its id, and short-lived clients.

All Kafka clients of the system are created from `Cluster`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final, Literal, TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaConnectionError, KafkaError
from typing_extensions import override

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka
from headwater.streams.kafka.names import name_in_kafka, topic_in_kafka, use_prefix

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
        prefix: Prefix of Headwater's names there: see `names`.
    """

    servers: str
    tls: SSLContext | None = None
    login: Login | None = None
    prefix: str = ""

    @property
    def protocol(self) -> str:
        """Return Kafka's name of the security protocol."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.login is None else f"SASL_{transport}"

    def options(self) -> dict[str, Any]:
        """Return the options for clients of aiokafka; patches aiokafka first."""
        return {"bootstrap_servers": self.servers, **self.connection_options()}

    def connection_options(self) -> dict[str, Any]:
        """Return the options for a connection of aiokafka; patches aiokafka first."""
        self.patch_clients()
        return {
            "security_protocol": self.protocol,
            "ssl_context": self.tls,
            **(self.login.options() if self.login else {}),
        }

    def patch_clients(self) -> None:
        """Patch aiokafka for this process, and have it use the names of this project."""
        patch_aiokafka()
        use_prefix(self.prefix)

    def topic_in_kafka(self, name: str) -> str:
        """Return Kafka's name of a topic."""
        return topic_in_kafka(self.prefix, name)

    def client_in_kafka(self, name: str) -> str:
        """Return Kafka's name of a client."""
        return name_in_kafka(self.prefix, name)

    @override
    def __str__(self) -> str:
        return self.servers


# -- short-lived clients: started, errors translated, always stopped

_RETRY_S: Final = 0.1


@asynccontextmanager
async def admin_client(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield an admin client.

    Raises:
        BrokerUnavailable: No broker answered, or the body raised an error of Kafka.
    """
    admin = AIOKafkaAdminClient(**cluster.options())
    try:
        await admin.start()
        # A broker that has just started, or stood still, lists no brokers for a moment.
        await _wait_for_metadata(admin, "a broker", lambda known: known.brokers())
        yield admin
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"expected Kafka at {cluster}, found: {error!r}; is the broker up?"
        ) from error
    finally:
        await admin.close()


async def wait_for_controller(admin: AIOKafkaAdminClient, within_s: float = 10.0) -> None:
    """Wait until a broker names the controller, to which changes of topics are sent.

    A broker that has just started may not know it, and aiokafka 0.14 assumes that it does.

    Args:
        admin: A started client.
        within_s: How long to wait, in seconds.

    Raises:
        KafkaConnectionError: No broker named one in time.
    """
    await _wait_for_metadata(admin, "a controller", lambda known: known.controller, within_s)


async def _wait_for_metadata(
    admin: AIOKafkaAdminClient,
    what: str,
    find: Callable[[ClusterMetadata], object],
    within_s: float = 10.0,
) -> None:
    client = admin._client  # noqa: SLF001 (aiokafka has no public name)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not find(client.cluster):
                await client.force_metadata_update()
                if not find(client.cluster):
                    await asyncio.sleep(_RETRY_S)
    if not find(client.cluster):
        raise KafkaConnectionError(f"expected {what} within {within_s:g} s, found none")


async def start_consumer(consumer: AIOKafkaConsumer) -> AIOKafkaConsumer:
    """Start a consumer and return it; stop it if it cannot be started.

    Raises:
        KafkaError: The consumer cannot be used again.
        OSError: The consumer cannot be used again.
    """
    try:
        await consumer.start()
    except BaseException:  # also on cancellation: connections would stay open
        await consumer.stop()
        raise
    return consumer


@asynccontextmanager
async def standalone_consumer(
    cluster: Cluster,
    *topics: str,
    purpose: str = "Kafka",
    **options: Any,  # noqa: ANN401 (aiokafka's)
) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer without a group.

    Args:
        cluster: The cluster.
        *topics: Topics to assign, if any.
        purpose: What is read, for the error message.
        **options: Options of aiokafka.

    Raises:
        BrokerUnavailable: No broker answered, or the body raised an error of Kafka.
    """
    consumer = AIOKafkaConsumer(*topics, **cluster.options(), **options)
    try:
        await consumer.start()
        yield consumer
    except (KafkaError, OSError) as error:  # also TimeoutError
        raise BrokerUnavailable(f"expected {purpose} at {cluster}, found: {error!r}") from error
    finally:
        with contextlib.suppress(KafkaError, OSError):
            await consumer.stop()


# -- id


async def cluster_id(cluster: Cluster) -> str:
    """Return the id of a cluster.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with admin_client(cluster) as admin:
        return str((await admin.describe_cluster())["cluster_id"])
