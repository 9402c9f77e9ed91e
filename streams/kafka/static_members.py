"""Static membership: a member that was fenced by another process fails instead of rejoining.

A worker with a name (`HEADWATER_MEMBER`) that joins replaces the member of that name, which is dead
in most cases. If it is alive, Kafka fences it (KIP-345). But aiokafka sends the name only when it
joins, so it gets UNKNOWN_MEMBER_ID and joins again. Then it replaces its successor, which does the
same, without end. With this patch a static member sends a heartbeat with its name before it
rejoins, and fails if it is fenced.
"""

import asyncio
from typing import Any, Final

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Int16, Int32, Schema, String
from typing_extensions import override

#: FENCED_INSTANCE_ID of Kafka's protocol.
_FENCED: Final = 82

_REJOIN: Final = GroupCoordinator._do_rejoin_group  # noqa: SLF001
_RESET: Final = GroupCoordinator.reset_generation


class MemberFenced(KafkaError):
    """Another process joined a group under the name of this one."""


class _Answer(Response):
    API_KEY = 12
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class _Heartbeat(RequestStruct):
    API_KEY = 12
    API_VERSION = 3
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("generation_id", Int32),
        ("member_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
    )


class _NamedHeartbeat(Request[_Heartbeat]):
    """A heartbeat with the name of its member; Kafka has it since static membership exists."""

    API_KEY = 12

    def __init__(self, *fields: object) -> None:
        self._fields = fields

    @override
    def build(self, request_struct_class: type[_Heartbeat]) -> _Heartbeat:
        return request_struct_class(*self._fields)


def patch_static_members() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing."""
    GroupCoordinator.reset_generation = _reset  # type: ignore[method-assign]
    GroupCoordinator._do_rejoin_group = _rejoin  # type: ignore[method-assign] # noqa: SLF001


def _reset(self: Any) -> None:  # noqa: ANN401 (a GroupCoordinator; it stores `was_member`)
    if self.member_id:
        self.was_member = self.generation, self.member_id
    _RESET(self)  # type: ignore[no-untyped-call]


async def _rejoin(self: Any, subscription: object) -> Any:  # noqa: ANN401 (as aiokafka has it)
    try:
        await _check(self)
    except MemberFenced:
        raise
    except KafkaError:  # no coordinator: it is looked up again by the next attempt
        await asyncio.sleep(self._retry_backoff_ms / 1_000)
        return False
    try:
        return await _REJOIN(self, subscription)  # type: ignore[no-untyped-call]
    except KafkaError:
        await _check(self)
        raise


async def _check(self: Any) -> None:  # noqa: ANN401 (see above)
    """Check whether another process replaced this member.

    Raises:
        MemberFenced: Another process joined under the name of this member.
        KafkaError: No coordinator answered.
    """
    name = self._group_instance_id
    last = getattr(self, "was_member", None)
    member = (self.generation, self.member_id) if self.member_id else last
    if name is None or member is None:
        return
    response = await self._send_req(_NamedHeartbeat(self.group_id, *member, name))
    if response.error_code == _FENCED:
        raise MemberFenced(
            f"expected to be the one member of {self.group_id} that is named {name}, found that "
            "another process joined under this name later; usual cause: two workers with one "
            "HEADWATER_MEMBER. Use a different name for each worker"
        )
