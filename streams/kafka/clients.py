"""Short-lived Kafka clients as context managers: started, errors translated, always stopped."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from headwater.schemas.errors import BrokerUnavailable
from headwater.streams.kafka.cluster import Cluster


@asynccontextmanager
async def admin_client(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield an admin client.

    Raises:
        BrokerUnavailable: No broker answered, or the body raised an error of Kafka.
    """
    admin = AIOKafkaAdminClient(**cluster.options())
    try:
        await admin.start()
        yield admin
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"expected Kafka at {cluster}, found: {error!r}; is the broker up?"
        ) from error
    finally:
        await admin.close()


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
