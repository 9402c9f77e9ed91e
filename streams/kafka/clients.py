"""Clients of Kafka for a while: started, their errors translated, and stopped whatever happens."""

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
async def admin_of(cluster: Cluster) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client.

    Errors: BrokerUnavailable, also for what its user meets.
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


async def started(consumer: AIOKafkaConsumer) -> AIOKafkaConsumer:
    """Starts a consumer; one that cannot be started is stopped, and cannot be started again.

    Errors: KafkaError, OSError.
    """
    try:
        await consumer.start()
    except BaseException:  # also if it is cancelled: connections would stay open
        await consumer.stop()
        raise
    return consumer


@asynccontextmanager
async def consumer_of(
    cluster: Cluster,
    *topics: str,
    wanted: str = "Kafka",
    **options: Any,  # noqa: ANN401 (aiokafka's)
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group; `wanted` says what of the cluster, should it be missing.

    Errors: BrokerUnavailable, also for what its user meets.
    """
    consumer = AIOKafkaConsumer(*topics, **cluster.options(), **options)
    try:
        await consumer.start()
        yield consumer
    except (KafkaError, OSError) as error:  # also TimeoutError
        raise BrokerUnavailable(f"expected {wanted} at {cluster}, found: {error!r}") from error
    finally:
        with contextlib.suppress(KafkaError, OSError):
            await consumer.stop()
