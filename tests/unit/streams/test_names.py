"""Names of a project in Kafka: aiokafka encodes them with the prefix, and decodes them without."""

import os
import subprocess
import sys

import pytest

from headwater.schemas.topics import TOPICS, WEBHOOKS, is_own_topic
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.names import (
    name_in_code,
    name_in_kafka,
    topic_in_code,
    topic_in_kafka,
)

PREFIX = "acme."
#: A process whose clients have a prefix, which it cannot lay down again.
PROGRAM = """
from io import BytesIO

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.protocol.api import RequestHeader_v1
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.metadata import MetadataRequest_v1, MetadataResponse_v1
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.struct import Struct
from aiokafka.protocol.types import Array, Schema, String

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.names import foreign_topic

Cluster("k:9092", prefix="acme.").options()
Cluster("k:9092", prefix="acme.").options()

request = MetadataRequest_v1(["webhooks", "orders", foreign_topic("events")])
assert b"acme.webhooks" in request.encode()
assert b"acme.orders" not in request.encode() and b"acme.events" not in request.encode()
assert MetadataRequest_v1.decode(request.encode()).topics == ["webhooks", "orders", "/events"]
assert foreign_topic("orders") == "orders"

group = FindCoordinatorRequest_v1("headwater-members", 0)
assert group.encode().startswith(b"\\0\\x16acme.headwater-members")
assert b"acme.gateway" in RequestHeader_v1(group, 1, "gateway").encode()

member = ConsumerProtocolMemberMetadata(0, ["traces"], b"")
assert b"acme.traces" in member.encode()
assert ConsumerProtocolMemberMetadata.decode(member.encode()).subscription == ["traces"]

def strings(name, field):
    if type(field) is String:
        yield name
    elif isinstance(field, Array):
        yield from strings(name, field.array_of)
    elif isinstance(field, Schema):
        for part, value in zip(field.names, field.fields):
            yield from strings(part, value)

def structs(of):
    for struct in of.__subclasses__():
        yield struct
        yield from structs(struct)

kinds = [*structs(Struct)]
names = {name for kind in kinds for name in strings("", kind.SCHEMA)}
assert len(kinds) > 100
left = {n for n in names if "topic" in n or "group" in n or "transaction" in n or "client" in n}
assert left == {"client_host", "group_instance_id", "group_protocol"}, left

try:
    Cluster("k:9092").options()
except RuntimeError as error:
    print(error)
"""


def test_a_topic_of_the_catalog_has_the_prefix_in_kafka_and_nowhere_else():
    assert topic_in_kafka(PREFIX, WEBHOOKS) == "acme.webhooks"
    for topic in TOPICS:
        assert topic_in_code(PREFIX, topic_in_kafka(PREFIX, topic.name)) == topic.name
        assert topic_in_kafka("", topic.name) == topic.name == topic_in_code("", topic.name)


@pytest.mark.parametrize("name", ["orders", "events", "acme.orders", "other.webhooks", "webhooks"])
def test_a_topic_of_another_program_keeps_its_name(name: str):
    in_code = topic_in_code(PREFIX, name)
    assert in_code not in {topic.name for topic in TOPICS}
    assert topic_in_kafka(PREFIX, in_code) == name
    assert not is_own_topic(PREFIX, name)


def test_groups_of_other_projects_are_not_taken_for_ours():
    assert name_in_kafka(PREFIX, "headwater-members") == "acme.headwater-members"
    assert name_in_code(PREFIX, "acme.headwater-members") == "headwater-members"
    assert name_in_code(PREFIX, "headwater-members") == "/headwater-members"
    assert name_in_kafka(PREFIX, "/headwater-members") == "headwater-members"


def test_all_requests_of_a_process_have_the_prefix():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "expected one topic prefix in a process, found 'acme.' and ''" in ended.stdout


def test_a_cluster_without_a_prefix_changes_no_name():
    assert Cluster("k:9092").topic_in_kafka(WEBHOOKS) == WEBHOOKS
    assert Cluster("k:9092", prefix=PREFIX).client_in_kafka("gateway") == "acme.gateway"
