"""The topics of the catalogue in Kafka: making them, and comparing what is with what should be."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from headwater.schemas.errors import BrokerUnavailable, Disposition, HeadwaterError
from headwater.schemas.topics import MAX_RECORD_BYTES, TOPICS, Topic
from headwater.streams.kafka.clients import admin_of
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

#: Where a value comes from that was set for this topic (KIP-226).
_OF_TOPIC: Final = 1
#: What no topic is made with, and each is to have: it is Kafka's own default, which some services
#: let nobody set. With another, a copy that lags may lead a partition, and what it lacks is lost.
_TO_HAVE: Final = {"unclean.leader.election.enable": "false"}
#: Where more than the catalogue asks for is as good.
_MORE_IS_FINE: Final = frozenset(
    {"max.message.bytes", "min.insync.replicas", "min.compaction.lag.ms", "delete.retention.ms"}
)


class TopicsLoseData(HeadwaterError):
    """Topics are configured so that what was acknowledged may be lost."""

    disposition = Disposition.HALT
    code = "topics_lose_data"


class Found(NamedTuple):
    """A topic as Kafka has it; `own` are the values that were set for it rather than for all."""

    partitions: int
    replication: int
    config: Mapping[str, str]
    own: Mapping[str, str]


class Difference(NamedTuple):
    """What is not as the catalogue has it."""

    topic: str
    what: str
    expected: str
    found: str
    #: Whether records that were acknowledged may be lost by it, or refused for ever.
    loses_data: bool
    mend: str

    def line(self) -> str:
        """The difference in words."""
        return f"topic {self.topic}: expected {self.what} {self.expected}, found {self.found}"


async def create_topics(cluster: Cluster, *, partitions: int, replication: int) -> list[str]:
    """Creates the topics of the catalogue that are missing; returns their names.

    Errors: BrokerUnavailable, with the broker's reason.
    """
    wanted = {topic.name: topic.config(replication) for topic in TOPICS}
    return await _create(cluster, wanted, partitions, replication)


async def create_authors_topics(
    cluster: Cluster, names: Collection[str], *, partitions: int, replication: int
) -> list[str]:
    """Creates those of an author's topics that are missing; returns their names.

    Errors: BrokerUnavailable, with the broker's reason.
    """
    # What a step may publish fits; all else is the broker's usual.
    wanted = {name: {"max.message.bytes": str(MAX_RECORD_BYTES)} for name in names}
    return await _create(cluster, wanted, partitions, replication)


async def _create(
    cluster: Cluster, wanted: Mapping[str, dict[str, str]], partitions: int, replication: int
) -> list[str]:
    async with admin_of(cluster) as admin:
        present = set(await admin.list_topics())
        missing = [
            NewTopic(name, partitions, replication, topic_configs=config)
            for name, config in wanted.items()
            if name not in present
        ]
        if not missing:
            return []
        response = await admin.create_topics(missing)
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


async def find_topics(cluster: Cluster) -> dict[str, Found]:
    """The topics of the catalogue that there are.

    Errors: BrokerUnavailable, also where this user may not look at them.
    """
    async with admin_of(cluster) as admin:
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
    return {each["topic"]: _found(each["partitions"], configs[each["topic"]]) for each in described}


def _found(partitions: Sequence[Mapping[str, Any]], entries: Sequence[Sequence[Any]]) -> Found:
    return Found(
        partitions=len(partitions),
        replication=min(len(each["replicas"]) for each in partitions),
        config={name: value for name, value, *_ in entries},
        own={name: value for name, value, _, source, *_ in entries if source == _OF_TOPIC},
    )


def compare(
    found: Mapping[str, Found], *, partitions: int | None = None, replication: int | None = None
) -> list[Difference]:
    """How topics differ from the catalogue.

    Shape:  the numbers of partitions and copies are compared where they are given.
    """
    return [
        difference
        for topic in TOPICS
        for difference in (
            _differences(topic, found[topic.name], partitions, replication)
            if topic.name in found
            else [_missing(topic)]
        )
    ]


def _missing(topic: Topic) -> Difference:
    return Difference(topic.name, "topic", "there", "missing", False, "headwater topics create")


def _differences(
    topic: Topic, found: Found, partitions: int | None, replication: int | None
) -> list[Difference]:
    differences = []
    if partitions is not None and partitions != found.partitions:
        differences.append(
            Difference(
                topic.name,
                "partitions",
                str(partitions),
                str(found.partitions),
                False,
                f"HEADWATER_PARTITIONS={found.partitions}; topics keep theirs, because keys would "
                "move away from what lies there",
            )
        )
    if replication is not None and replication != found.replication:
        differences.append(
            Difference(
                topic.name,
                "replication",
                str(replication),
                str(found.replication),
                False,
                "kafka-reassign-partitions.sh, or another HEADWATER_REPLICATION",
            )
        )
    # By the copies that there are: more in-sync ones than these would refuse every record.
    for name, expected in (topic.config(found.replication) | _TO_HAVE).items():
        actual = found.config.get(name, _TO_HAVE.get(name, ""))
        if not _fits(name, expected, actual):
            loses = topic.loses_data_by(name)
            mend = "headwater topics check --mend"
            differences.append(Difference(topic.name, name, expected, actual, loses, mend))
    return differences


def _fits(name: str, expected: str, actual: str) -> bool:
    if name == "cleanup.policy":
        return set(expected.split(",")) == set(actual.split(","))
    if name in _MORE_IS_FINE and actual.lstrip("-").isdigit():
        return int(actual) >= int(expected)
    return expected == actual


async def alter_topics(
    cluster: Cluster, found: Mapping[str, Found], differences: Sequence[Difference]
) -> list[Difference]:
    """Gives topics the configuration of the catalogue; returns which differences that mended.

    Errors: BrokerUnavailable, with the broker's reason.
    """
    altered = [
        each
        for each in differences
        if each.topic in found and each.what in found[each.topic].config
    ]
    if not altered:
        return []
    # The request replaces what was set for a topic, so all of that goes with it.
    wanted = {name: dict(found[name].own) for name in dict.fromkeys(each.topic for each in altered)}
    for each in altered:
        wanted[each.topic][each.what] = each.expected
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, name, configs=config)
        for name, config in wanted.items()
    ]
    async with admin_of(cluster) as admin:
        answers = await admin.alter_configs(resources)
    for answer in answers:
        for code, message, _, name in answer.resources:  # type: ignore[attr-defined]
            if code:
                raise BrokerUnavailable(
                    f"expected to alter the topic {name}, found: {for_code(code).__name__} "
                    f"{message or ''}"
                )
    return altered


def creating(topic: str) -> str:
    """What makes a topic of an author's."""
    return f"`headwater topics create {topic}` makes it"


def _looking() -> Retrying:
    return Retrying(log, "waiting for Kafka to look at the topics")


async def warn_of_missing(cluster: Cluster, publishes: Mapping[str, Collection[str]]) -> None:
    """Says at the start of a worker which topics are missing that steps publish to.

    Shape:  publishes has the topics that workflows declare, by their names.
    """
    whose: dict[str, list[str]] = {}
    for workflow, topics in sorted(publishes.items()):
        for topic in topics:
            whose.setdefault(topic, []).append(workflow)
    if not whose:
        return
    present = await _looking().until_done(lambda: _present(cluster))
    for topic in sorted(whose.keys() - present):
        log.warning(
            "topic %s: expected it there, as steps of %s publish to it, found it missing; what "
            "they publish waits for it: %s",
            *(topic, ", ".join(whose[topic]), creating(topic)),
        )


async def _present(cluster: Cluster) -> set[str]:
    async with admin_of(cluster) as admin:
        return set(await admin.list_topics())


async def check_topics(cluster: Cluster) -> None:
    """Compares the topics at the start of a part, and waits for Kafka; warns of what differs.

    Errors: TopicsLoseData, so that the part takes and writes nothing.
    """
    differences = compare(await _looking().until_done(lambda: find_topics(cluster)))
    for each in differences:
        log.warning("%s", each.line())
    unsafe = [each.line() for each in differences if each.loses_data]
    if unsafe:
        raise TopicsLoseData(f"{'; '.join(unsafe)}. `headwater topics check` says how to mend it")
