"""Making the topics of the catalogue."""

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.topics import TOPICS
from headwater.streams.kafka.cluster import Cluster


async def create_topics(cluster: Cluster, *, partitions: int, replication: int) -> list[str]:
    """Creates the topics that are missing; returns their names.

    Errors: BrokerUnavailable, with the broker's reason.
    """
    admin = AIOKafkaAdminClient(**cluster.options())
    try:
        await admin.start()
        present = set(await admin.list_topics())
        missing = [
            NewTopic(topic.name, partitions, replication, topic_configs=topic.config())
            for topic in TOPICS
            if topic.name not in present
        ]
        if not missing:
            return []
        response = await admin.create_topics(missing)
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"expected Kafka at {cluster}, found: {error!r}; is the broker up?"
        ) from error
    finally:
        await admin.close()
    made = []
    for name, code, *reason in response.topic_errors:  # type: ignore[attr-defined]
        kind = for_code(code)
        if code == 0:
            made.append(name)
        elif kind is not TopicAlreadyExistsError:
            raise BrokerUnavailable(
                f"expected to create the topic {name}, found: {kind.__name__} {reason}"
            )
    return made
