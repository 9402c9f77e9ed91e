"""Names in Kafka: those of this project have a prefix there, and nowhere else.

Code, records, logs and metrics name a topic as the catalog does: `webhooks`. With the prefix
`acme.`, Kafka has it as `acme.webhooks`. Consumer groups, transactional ids and names of clients
have the prefix, too. All of them are fields of Kafka's requests and responses, so there is one
place that cannot be forgotten: `use_prefix` replaces the type of these fields in aiokafka's
schemas, which encode and decode every request. (`batch_sender` packs one request itself.)

Topics of other programs are named as they are. If the catalog has a topic of the same name, the
code writes a `/` before the other one: `/events` is the topic `events` of another program. No name
in Kafka contains that character.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Final

# Modules of aiokafka, so that all schemas are there when they are changed.
import aiokafka.coordinator.protocol
import aiokafka.protocol.admin
import aiokafka.protocol.transaction  # noqa: F401
from aiokafka.protocol.struct import Struct
from aiokafka.protocol.types import Array, Schema, String, ValueT
from typing_extensions import override

from headwater.schemas.topics import TOPICS, is_own_topic

#: Before the name of what belongs to another program, where it could be taken for ours.
_FOREIGN: Final = "/"
_OURS: Final = frozenset(topic.name for topic in TOPICS)

#: Fields with names of topics; brokers are resources, too, but have numbers.
_TOPIC_FIELDS: Final = frozenset({"topic", "topics", "subscription", "resource_name"})
#: Fields with other names that have the prefix.
_OTHER_FIELDS: Final = frozenset(
    {"group", "groups", "groups_names", "group_id", "consumer_group", "coordinator_key"}
    | {"transactional_id", "client_id"}
)

#: The prefix of this process.
_prefix = ""


def foreign_topic(name: str) -> str:
    """Return the name by which the code uses a topic of another program."""
    return _FOREIGN + name if _prefix and name in _OURS else name


def topic_in_kafka(prefix: str, name: str) -> str:
    """Return the name in Kafka of a topic that the code uses."""
    if name.startswith(_FOREIGN):
        return name.removeprefix(_FOREIGN)
    return prefix + name if name in _OURS else name


def topic_in_code(prefix: str, name: str) -> str:
    """Return the name by which the code uses a topic in Kafka."""
    if is_own_topic(prefix, name):
        return name.removeprefix(prefix)
    return _FOREIGN + name if name in _OURS else name


def name_in_kafka(prefix: str, name: str) -> str:
    """Return the name in Kafka of a consumer group, a transaction or a client."""
    is_foreign = name.startswith(_FOREIGN)
    return name.removeprefix(_FOREIGN) if is_foreign else prefix + name


def name_in_code(prefix: str, name: str) -> str:
    """Return the name by which the code uses a consumer group, a transaction or a client."""
    return name.removeprefix(prefix) if name.startswith(prefix) else _FOREIGN + name


class _TopicName(String):
    """The name of a topic in a request or response."""

    @override
    def encode(self, value: str | None) -> bytes:
        return super().encode(value and topic_in_kafka(_prefix, value))

    @override
    def decode(self, data: BytesIO) -> str | None:
        value = super().decode(data)
        return value and topic_in_code(_prefix, value)


class _OtherName(String):
    """The name of a consumer group, a transaction or a client in a request or response."""

    @override
    def encode(self, value: str | None) -> bytes:
        return super().encode(value and name_in_kafka(_prefix, value))

    @override
    def decode(self, data: BytesIO) -> str | None:
        value = super().decode(data)
        return value and name_in_code(_prefix, value)


def use_prefix(prefix: str) -> None:
    """Use a prefix in all requests of this process; calling it again changes nothing.

    Raises:
        RuntimeError: This process uses another prefix: it belongs to one project.
    """
    global _prefix  # noqa: PLW0603, aiokafka's schemas are shared by all clients of the process
    if prefix == _prefix:
        return
    if _prefix:
        raise RuntimeError(
            f"expected one topic prefix in a process, found {_prefix!r} and {prefix!r}"
        )
    _prefix = prefix
    for struct in _subclasses(Struct):
        _typed("", struct.SCHEMA)


def _subclasses(struct: type[Struct]) -> Iterator[type[Struct]]:
    for subclass in struct.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _typed(name: str, field: ValueT) -> ValueT:
    """Return a field with the type of its name; change the fields within it."""
    if type(field) is String:
        if name in _TOPIC_FIELDS:
            return _TopicName(field.encoding)
        return _OtherName(field.encoding) if name in _OTHER_FIELDS else field
    if isinstance(field, Array):
        field.array_of = _typed(name, field.array_of)
    elif isinstance(field, Schema):
        parts = zip(field.names, field.fields, strict=True)
        field.fields = tuple(_typed(part, value) for part, value in parts)
    return field
