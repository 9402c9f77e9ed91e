"""Records and topics."""

from headwater.schemas.records import Stamp
from headwater.schemas.topics import MAX_RECORD_BYTES, TOPICS, Cleanup, Topic


def test_a_stamp_says_where_its_delivery_lies():
    assert Stamp(0, 1, 2, "e", 3, 41).position == "webhooks/3@41"


def test_a_topic_is_configured_in_kafkas_own_names():
    kept = Topic(name="t", key="k", value=None, cleanup=Cleanup.COMPACT, purpose="p")
    assert kept.config(replication=3) == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "max.message.bytes": str(MAX_RECORD_BYTES),
        "compression.type": "zstd",
        "min.insync.replicas": "2",
        "min.compaction.lag.ms": "3600000",
        "max.compaction.lag.ms": "1209600000",
        "delete.retention.ms": "604800000",
        "message.timestamp.type": "LogAppendTime",
    }
    removed = Topic(
        name="t", key="k", value=None, cleanup=Cleanup.DELETE, retention_ms=5, purpose="p"
    )
    config = removed.config(replication=2)
    assert config["retention.ms"] == "5"
    assert config["cleanup.policy"] == "delete"
    assert config["min.insync.replicas"] == "1"
    assert "min.compaction.lag.ms" not in config


def test_a_delivery_stays_for_as_long_as_its_copies_are_dropped():
    by_name = {topic.name: topic for topic in TOPICS}
    lag = int(by_name["webhooks"].config(replication=1)["min.compaction.lag.ms"])
    assert lag == by_name["admissions"].retention_ms
