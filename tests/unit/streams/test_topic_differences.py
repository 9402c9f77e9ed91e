"""Which differences of a topic's configuration lose data: with three copies, as in a cluster."""

import asyncio

import pytest

from headwater.schemas.topics import TOPICS, WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.topics import (
    TopicsTaken,
    TopicState,
    alter_topics,
    compare,
    named_in_kafka,
    refuse_foreign,
)

COPIES = 3


def as_ours(**others: str) -> dict[str, TopicState]:
    """All topics as the catalogue has them, but for some configuration of the deliveries'."""
    changed = {name.replace("_", "."): value for name, value in others.items()}
    return {
        topic.name: TopicState(
            partitions=4,
            replication=COPIES,
            config=topic.config(COPIES) | (changed if topic.name == WEBHOOKS else {}),
            own={},
        )
        for topic in TOPICS
    }


@pytest.mark.parametrize(
    "less",
    [
        # A broker's own default: what was acknowledged may be in one copy.
        {"min_insync_replicas": "1"},
        # A claim may be kept, and the delivery that it is of be removed for a copy of it.
        {"min_compaction_lag_ms": "0"},
        {"max_message_bytes": "1048588"},
        {"cleanup_policy": "delete"},
        # A service's own default: a copy that lags may lead, and the others follow it.
        {"unclean_leader_election_enable": "true"},
    ],
)
def test_a_topic_that_may_lose_what_was_acknowledged_is_found_out(less: dict[str, str]) -> None:
    (difference,) = compare(as_ours(**less))
    ((name, value),) = less.items()
    assert (difference.topic, difference.what) == (WEBHOOKS, name.replace("_", "."))
    assert (difference.found, difference.loses_data) == (value, True)


@pytest.mark.parametrize(
    "more", [{}, {"min_insync_replicas": "3"}, {"delete_retention_ms": "9" * 12}]
)
def test_a_topic_that_keeps_more_is_as_good(more: dict[str, str]) -> None:
    assert compare(as_ours(**more)) == []


def test_an_own_rule_for_when_records_go_loses_nothing_that_was_promised() -> None:
    (difference,) = compare(as_ours(max_compaction_lag_ms="1"))
    assert not difference.loses_data


def test_a_topic_that_is_missing_is_told_and_cannot_be_altered() -> None:
    result = as_ours()
    del result[WEBHOOKS]
    (difference,) = compare(result)
    assert difference.line() == "topic webhooks: expected topic there, found missing"
    assert difference.mend == "headwater topics create"
    nobody = Cluster("127.0.0.1:1")
    assert asyncio.run(alter_topics(nobody, result, [difference])) == []


def test_topics_without_headwaters_configuration_belong_to_another_program() -> None:
    cluster = Cluster("127.0.0.1:1", prefix="acme.")
    defaults = {"max.message.bytes": "1048588", "compression.type": "producer"}
    theirs = {
        name: TopicState(partitions=1, replication=1, config=defaults, own={})
        for name in ("events", "webhooks")
    }
    with pytest.raises(TopicsTaken, match=r"program: acme\.events, acme\.webhooks; nothing was"):
        refuse_foreign(cluster, theirs)
    # Once Headwater is installed, a topic that was altered is still its own.
    refuse_foreign(cluster, as_ours() | {"events": theirs["events"]})
    refuse_foreign(cluster, {})


def test_an_operator_reads_the_names_of_kafka() -> None:
    result = as_ours()
    del result[WEBHOOKS]
    (difference,) = named_in_kafka(Cluster("127.0.0.1:1", prefix="acme."), compare(result))
    assert difference.line() == "topic acme.webhooks: expected topic there, found missing"
