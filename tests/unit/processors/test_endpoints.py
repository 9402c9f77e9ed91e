"""Endpoints: what records about one come to, and which notifications it receives."""

import msgspec
import pytest

from headwater.processors.endpoints import Endpoint, Endpoints, EndpointState
from headwater.processors.notifications import SCOPE_OF_TYPE, Notification, NotificationType
from headwater.schemas.endpoints import (
    EndpointCreated,
    EndpointDeleted,
    EndpointSecretSet,
    EndpointStateSet,
)

ID = "ep_1"
CREATED = EndpointCreated(
    id=ID,
    url="https://example.com/hooks",
    description="",
    types=("instance_errored", "dead_letter", "row_changed", "instance_completed"),
    workflows=("order",),
    tables=("users",),
    reasons=("rule_failed",),
    by="admin",
    at_ms=100,
)
SECRET = EndpointSecretSet(
    id=ID, secret="whsec_bmV3", previous="", previous_until_ms=0, by="admin", at_ms=100
)
DELETED = EndpointDeleted(id=ID, by="admin", at_ms=900)


def state(value: EndpointState, at_ms: int) -> EndpointStateSet:
    return EndpointStateSet(id=ID, state=value, why="tired", by="admin", at_ms=at_ms)


def notification(type_: str, **fields: str) -> Notification:
    return Notification(id="msg_1", type=type_, at_ms=200, data={}, **fields)  # type: ignore[arg-type]


def folded(*records: object) -> Endpoint | None:
    endpoints = Endpoints()
    for record in records:
        endpoints.apply(record)  # type: ignore[arg-type]
    return endpoints.by_id.get(ID)


def test_a_secret_comes_before_its_endpoint():
    endpoint = folded(SECRET, CREATED)
    assert endpoint is not None
    assert endpoint.secrets(0) == ("whsec_bmV3",)
    assert endpoint.is_active
    assert endpoint.active_since_ms == 100


def test_during_a_rotation_there_are_two_secrets():
    rotated = msgspec.structs.replace(
        SECRET, secret="whsec_b3RoZXI=", previous=SECRET.secret, previous_until_ms=500
    )
    endpoint = folded(SECRET, CREATED, rotated)
    assert endpoint is not None
    assert endpoint.secrets(499) == ("whsec_b3RoZXI=", "whsec_bmV3")
    assert endpoint.secrets(500) == ("whsec_b3RoZXI=",)


def test_an_endpoint_that_is_enabled_again_is_active_from_then_on():
    endpoint = folded(SECRET, CREATED, state(EndpointState.DISABLED, 300))
    assert endpoint is not None
    assert not endpoint.is_active
    endpoint = folded(
        SECRET, CREATED, state(EndpointState.DISABLED, 300), state(EndpointState.ACTIVE, 400)
    )
    assert endpoint is not None
    assert endpoint.is_active
    assert endpoint.active_since_ms == 400


def test_a_deleted_endpoint_does_not_come_back():
    """Compaction removes its creation, not the records of other kinds."""
    assert folded(SECRET, CREATED, DELETED) is None
    assert folded(SECRET, state(EndpointState.ACTIVE, 1), DELETED) is None
    assert folded(DELETED, SECRET, state(EndpointState.ACTIVE, 1000)) is None


@pytest.mark.parametrize(
    ("type_", "fields", "accepted"),
    [
        ("instance_errored", {"workflow": "order"}, True),
        ("instance_errored", {"workflow": "other"}, False),
        ("instance_terminated", {"workflow": "order"}, False),
        ("dead_letter", {"reason": "rule_failed"}, True),
        ("dead_letter", {"reason": "other"}, False),
        ("row_changed", {"table": "users"}, True),
        ("row_changed", {"table": "other"}, False),
    ],
)
def test_filters_accept_what_they_name(type_: str, fields: dict[str, str], accepted: bool):
    endpoint = folded(SECRET, CREATED)
    assert endpoint is not None
    assert endpoint.takes(notification(type_, **fields)) is accepted


def test_of_built_in_workflows_only_failures_are_sent_unless_they_are_named():
    everything = msgspec.structs.replace(CREATED, workflows=())
    endpoint = folded(SECRET, everything)
    assert endpoint is not None
    assert endpoint.takes(notification("instance_errored", workflow="headwater-replay"))
    assert endpoint.takes(notification("instance_completed", workflow="order"))
    assert not endpoint.takes(notification("instance_completed", workflow="headwater-replay"))
    named = folded(SECRET, msgspec.structs.replace(CREATED, workflows=("headwater-replay",)))
    assert named is not None
    assert named.takes(notification("instance_completed", workflow="headwater-replay"))


def test_every_type_has_a_scope():
    assert set(SCOPE_OF_TYPE) == set(NotificationType)
