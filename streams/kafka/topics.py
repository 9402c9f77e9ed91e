"""The topics of the catalog in Kafka: create them, and compare them with the catalog."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.topics import COMPRESSION, MAX_RECORD_BYTES, TOPICS, Topic, is_own_topic
from headwater.streams.kafka.cluster import Cluster, admin_client, wait_for_controller
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: Source of a value that was set for this topic (KIP-226).
_OF_TOPIC: Final = 1
#: Settings that are checked, but not set at creation: this is Kafka's own default, which some
#: services do not let users set. With another value, a replica that lags may become leader, and
#: records that it lacks are lost.
_TO_HAVE: Final = {"unclean.leader.election.enable": "false"}
#: Value of `max.message.bytes` with which the broker refuses every append: of topics that were
#: copied into ones with more partitions.
CLOSED: Final = "0"
#: Settings that may be greater than in the catalog.
_MORE_IS_FINE: Final = frozenset(
    {"max.message.bytes", "min.insync.replicas", "min.compaction.lag.ms", "delete.retention.ms"}
)


class TopicsLoseData(HeadwaterError):
    """Topics are configured so that what was acknowledged may be lost."""

    disposition = Disposition.HALT
    code = "topics_lose_data"


class TopicsTaken(HeadwaterError):
    """Topics of another program have names of the catalog."""

    disposition = Disposition.HALT
    code = "topics_taken"


class TopicsClosed(HeadwaterError):
    """Topics were copied, or are being copied, into ones with more partitions."""

    disposition = Disposition.HALT
    code = "topics_closed"


class TopicState(NamedTuple):
    """A topic as Kafka has it; `own` are the values set for it rather than for all topics."""

    partitions: int
    replication: int
    config: Mapping[str, str]
    own: Mapping[str, str]


class Difference(NamedTuple):
    """A difference between a topic and the catalog."""

    topic: str
    what: str
    expected: str
    found: str
    #: Whether acknowledged records may be lost by it, or records refused forever.
    loses_data: bool
    mend: str

    def line(self) -> str:
        """Return the difference as a sentence."""
        return f"topic {self.topic}: expected {self.what} {self.expected}, found {self.found}"


async def create_topics(cluster: Cluster, *, partitions: int, replication: int) -> list[str]:
    """Create the topics of the catalog that are missing; return their names in Kafka.

    Raises:
        BrokerUnavailable: No broker answered, or it refused; with the broker's reason.
        TopicsTaken: Topics of another program have these names; nothing was created.
    """
    refuse_foreign(cluster, await describe_catalog(cluster))
    configs = {topic.name: topic.config(replication) for topic in TOPICS}
    return await create_topics_with(cluster, configs, partitions, replication)


async def create_authors_topics(
    cluster: Cluster, names: Collection[str], *, partitions: int, replication: int
) -> list[str]:
    """Create those of an author's topics that are missing; return their names.

    Raises:
        BrokerUnavailable: No broker answered, or it refused; with the broker's reason.
    """
    # The largest record that a step may publish fits; all else is the broker's default.
    configs = {name: {"max.message.bytes": str(MAX_RECORD_BYTES)} for name in names}
    return await create_topics_with(cluster, configs, partitions, replication)


async def create_topics_with(
    cluster: Cluster, configs: Mapping[str, dict[str, str]], partitions: int, replication: int
) -> list[str]:
    """Create those topics that are missing; return their names in Kafka.

    Args:
        cluster: The cluster.
        configs: Configurations by topic.
        partitions: Number of partitions of each.
        replication: Number of replicas.

    Raises:
        BrokerUnavailable: No broker answered, or it refused; with the broker's reason.
    """
    async with admin_client(cluster) as admin:
        present = set(await admin.list_topics())
        missing = [
            NewTopic(name, partitions, replication, topic_configs=config)
            for name, config in configs.items()
            if name not in present
        ]
        if not missing:
            return []
        await wait_for_controller(admin)
        response = await admin.create_topics(missing)
    created = []
    for name, code, *reason in response.topic_errors:  # type: ignore[attr-defined]
        kind = for_code(code)
        if code == 0:
            created.append(cluster.topic_in_kafka(name))
        elif kind is not TopicAlreadyExistsError:
            raise BrokerUnavailable(
                f"expected to create the topic {cluster.topic_in_kafka(name)}, found: "
                f"{kind.__name__} {reason}"
            )
    return created


async def describe_catalog(cluster: Cluster) -> dict[str, TopicState]:
    """Return the topics of the catalog that exist, by name.

    Raises:
        BrokerUnavailable: No broker answered, or this user may not describe topics.
    """
    async with admin_client(cluster) as admin:
        names = {topic.name for topic in TOPICS} & set(await admin.list_topics())
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(names)]
        described = await admin.describe_topics(sorted(names))
        answers = await admin.describe_configs(resources)
    configs = {}
    for answer in answers:
        for code, message, _, name, entries in answer.resources:  # type: ignore[attr-defined]
            if code:
                raise BrokerUnavailable(
                    f"expected the configuration of {name}, found: {for_code(code).__name__} "
                    f"{message or ''}"
                )
            configs[name] = entries
    return {
        topic["topic"]: _topic_state(topic["partitions"], configs[topic["topic"]])
        for topic in described
    }


def _topic_state(
    partitions: Sequence[Mapping[str, Any]], entries: Sequence[Sequence[Any]]
) -> TopicState:
    return TopicState(
        partitions=len(partitions),
        replication=min(len(partition["replicas"]) for partition in partitions),
        config={name: value for name, value, *_ in entries},
        own={name: value for name, value, _, source, *_ in entries if source == _OF_TOPIC},
    )


def refuse_foreign(cluster: Cluster, topics: Mapping[str, TopicState]) -> None:
    """Check that existing topics are Headwater's: some were created with its configuration.

    Before Headwater is installed, no topic has it, so those that exist belong to another program.
    Afterwards, topics without it were altered; `compare` reports them.

    Raises:
        TopicsTaken: Topics of another program have names of the catalog.
    """
    if topics and not any(map(_is_configured, topics.values())):
        names = ", ".join(sorted(map(cluster.topic_in_kafka, topics)))
        raise TopicsTaken(
            f"expected topics of Headwater, found topics of another program: {names}; nothing was "
            "changed. Set HEADWATER_TOPIC_PREFIX, or HEADWATER_PROJECT, which chooses a prefix"
        )


def _is_configured(state: TopicState) -> bool:
    largest = state.config.get("max.message.bytes", "")
    is_large = largest.isdigit() and int(largest) >= MAX_RECORD_BYTES
    return (is_large or largest == CLOSED) and state.config.get("compression.type") == COMPRESSION


def is_closed(topics: Mapping[str, TopicState]) -> bool:
    """Return whether topics were closed, to be copied into ones with more partitions."""
    return any(state.config.get("max.message.bytes") == CLOSED for state in topics.values())


def refuse_closed(cluster: Cluster, topics: Mapping[str, TopicState]) -> None:
    """Check that topics are open.

    Raises:
        TopicsClosed: The broker refuses appends to them.
    """
    if is_closed(topics):
        raise TopicsClosed(
            f"expected open topics, found that `headwater topics grow` has closed those with the "
            f"prefix {cluster.prefix!r}: set HEADWATER_TOPIC_PREFIX to the prefix of the new ones. "
            "Before they are complete, `headwater topics grow --abort` opens the old ones again"
        )


def compare(
    topics: Mapping[str, TopicState],
    *,
    partitions: int | None = None,
    replication: int | None = None,
) -> list[Difference]:
    """Return the differences between topics and the catalog.

    Args:
        topics: The topics by name.
        partitions: Expected number of partitions, if it is to be compared.
        replication: Expected number of replicas, if it is to be compared.
    """
    return [
        difference
        for topic in TOPICS
        for difference in (
            _differences(topic, topics[topic.name], partitions, replication)
            if topic.name in topics
            else [_missing(topic)]
        )
    ]


def named_in_kafka(cluster: Cluster, differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with the names of topics in Kafka."""
    return [
        difference._replace(topic=cluster.topic_in_kafka(difference.topic))
        for difference in differences
    ]


def _missing(topic: Topic) -> Difference:
    return Difference(topic.name, "topic", "there", "missing", False, "headwater topics create")


def _differences(
    topic: Topic, state: TopicState, partitions: int | None, replication: int | None
) -> list[Difference]:
    differences = []
    if partitions is not None and partitions != state.partitions:
        differences.append(
            Difference(
                topic.name,
                "partitions",
                str(partitions),
                str(state.partitions),
                False,
                f"HEADWATER_PARTITIONS={state.partitions}; topics keep theirs, because keys would "
                "move away from records already there. `headwater topics grow` copies all topics "
                "into ones with more partitions",
            )
        )
    if replication is not None and replication != state.replication:
        differences.append(
            Difference(
                topic.name,
                "replication",
                str(replication),
                str(state.replication),
                False,
                "kafka-reassign-partitions.sh, or another HEADWATER_REPLICATION",
            )
        )
    # By the actual number of replicas: more in-sync ones than these would refuse every record.
    for name, expected in (topic.config(state.replication) | _TO_HAVE).items():
        actual = state.config.get(name, _TO_HAVE.get(name, ""))
        if not _fits(name, expected, actual):
            loses = topic.loses_data_by(name)
            repair = "headwater topics check --mend"
            differences.append(Difference(topic.name, name, expected, actual, loses, repair))
    return differences


def _fits(name: str, expected: str, actual: str) -> bool:
    if name == "cleanup.policy":
        return set(expected.split(",")) == set(actual.split(","))
    if name in _MORE_IS_FINE and actual.lstrip("-").isdigit():
        return int(actual) >= int(expected)
    return expected == actual


async def alter_topics(
    cluster: Cluster, topics: Mapping[str, TopicState], differences: Sequence[Difference]
) -> list[Difference]:
    """Give topics the configuration of the catalog; return the differences that this removed.

    Raises:
        BrokerUnavailable: No broker answered, or it refused; with the broker's reason.
    """
    altered = [
        difference
        for difference in differences
        if difference.topic in topics and difference.what in topics[difference.topic].config
    ]
    if not altered:
        return []
    # The request replaces all values set for a topic, so it repeats the others.
    configs = {difference.topic: dict(topics[difference.topic].own) for difference in altered}
    for difference in altered:
        configs[difference.topic][difference.what] = difference.expected
    await set_configs(cluster, configs)
    return altered


async def set_configs(cluster: Cluster, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Replace all values that are set for topics.

    Raises:
        BrokerUnavailable: No broker answered, or it refused; with the broker's reason.
    """
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(config))
        for name, config in configs.items()
    ]
    async with admin_client(cluster) as admin:
        answers = await admin.alter_configs(resources)
    for answer in answers:
        for code, message, _, name in answer.resources:  # type: ignore[attr-defined]
            if code:
                raise BrokerUnavailable(
                    f"expected to alter the topic {name}, found: {for_code(code).__name__} "
                    f"{message or ''}"
                )


def create_topic_hint(topic: str) -> str:
    """Return the command that creates a topic of an author's, as a clause."""
    return f"`headwater topics create {topic}` creates it"


def _retrying() -> Retrying:
    return Retrying(log, "waiting for Kafka to describe the topics")


async def warn_about_missing_topics(
    cluster: Cluster, publishes: Mapping[str, Collection[str]]
) -> None:
    """Log at the start of a worker which topics are missing that steps publish to.

    Args:
        cluster: The cluster.
        publishes: Topics that workflows declare, by name of the workflow.
    """
    workflows: dict[str, list[str]] = {}
    for workflow, topics in sorted(publishes.items()):
        for topic in topics:
            workflows.setdefault(topic, []).append(workflow)
    if not workflows:
        return
    present = await _retrying().until_done(lambda: _present(cluster))
    own = sorted(name for name in workflows if is_own_topic(cluster.prefix, name))
    for topic in own:
        log.error(
            "topic %s is Headwater's own, and steps of %s publish to it; what they publish waits",
            *(topic, ", ".join(workflows[topic])),
        )
    for topic in sorted(workflows.keys() - present - {*own}):
        log.warning(
            "topic %s is missing, and steps of %s publish to it; what they publish waits until it "
            "exists: %s",
            *(topic, ", ".join(workflows[topic]), create_topic_hint(topic)),
        )


async def _present(cluster: Cluster) -> set[str]:
    async with admin_client(cluster) as admin:
        return set(await admin.list_topics())


async def check_topics(cluster: Cluster) -> None:
    """Compare the topics at the start of a process; log differences. Waits for Kafka.

    Raises:
        TopicsLoseData: Acknowledged records may be lost, so that the process must not start.
        TopicsTaken: Topics of another program have names of the catalog.
        TopicsClosed: They were copied into topics with more partitions.
    """
    topics = await _retrying().until_done(lambda: describe_catalog(cluster))
    refuse_foreign(cluster, topics)
    refuse_closed(cluster, topics)
    differences = named_in_kafka(cluster, compare(topics))
    for difference in differences:
        log.warning("%s", difference.line())
    unsafe = [difference.line() for difference in differences if difference.loses_data]
    if unsafe:
        raise TopicsLoseData(f"{'; '.join(unsafe)}. `headwater topics check` says how to fix it")
