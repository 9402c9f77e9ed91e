"""What of a removed deployment is deleted from the log: without it, the log says the same."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from headwater.processors.deployments import Deployments
from headwater.schemas.codec import encode
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    DeploymentLoaded,
    DeploymentRecord,
    DeploymentRetired,
    LoadRequested,
)
from headwater.streams.workflows.deployment_log import superseded
from tests.unit.processors.test_deployments import activated, created, facts, retired

if TYPE_CHECKING:
    from headwater.streams.kafka.records import Incoming


def removal(closing: str) -> list[DeploymentRetired]:
    return [retired("a", stage, closing) for stage in (CLOSED, REMOVED)]


def deleted(records: Iterable[DeploymentRecord], removed: DeploymentRetired) -> set[int]:
    """The numbers of the records that are deleted after a removal."""
    log = [
        cast("Incoming", SimpleNamespace(value=encode(record), offset=number))
        for number, record in enumerate(records)
    ]
    return {record.offset for record in superseded(log, removed)[0]}


def fold(records: Iterable[DeploymentRecord]) -> Deployments:
    result = Deployments()
    for record in records:
        result.apply(record)
    return result


def test_what_was_active_between_two_removals_was_so_after_the_deletion():
    records: list[DeploymentRecord] = [
        *(created("b"), activated("b"), created("a"), *removal("c1")),
        *(created("a"), activated("a"), created("c"), activated("c", after="a"), *removal("c2")),
    ]
    gone = deleted(records, removal("c2")[1])
    left = [record for number, record in enumerate(records) if number not in gone]
    assert gone == {2}
    assert facts(fold(left)) == facts(fold(records))
    assert fold(left).state == "c"


def test_requests_to_load_a_removed_deployment_and_their_answers_are_deleted():
    records: list[DeploymentRecord] = [
        created("a"),
        LoadRequested(id="a", request="r", at_ms=1),
        DeploymentLoaded(id="a", request="r", worker="one", error="no module", at_ms=1),
        LoadRequested(id="b", request="s", at_ms=1),
        *removal("c"),
    ]
    assert deleted(records, removal("c")[1]) == {0, 1, 2}
