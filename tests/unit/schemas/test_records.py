"""Records and topics."""

from headwater.schemas.records import Stamp
from headwater.schemas.topics import MAX_RECORD_BYTES, Cleanup, Topic


def test_a_stamp_says_where_its_delivery_lies():
    assert Stamp(0, 1, 2, "e", 3, 41).position == "webhooks/3@41"


def test_a_topic_is_configured_in_kafkas_own_names():
    kept = Topic(name="t", key="k", value=None, cleanup=Cleanup.COMPACT, purpose="p")
    assert kept.config() == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "max.message.bytes": str(MAX_RECORD_BYTES),
    }
    gone = Topic(name="t", key="k", value=None, cleanup=Cleanup.DELETE, retention_ms=5, purpose="p")
    assert gone.config()["retention.ms"] == "5"
    assert gone.config()["cleanup.policy"] == "delete"
