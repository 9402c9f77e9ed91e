"""Operator routes that wipe a user and report the progress of a wipe."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, PathParameter

from headwater.gateway.api.json_bodies import check_texts
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.operations import operation_routes, poll_until
from headwater.gateway.api.problems import Problem
from headwater.gateway.builtin.blobs.store import Blobs, InvalidBlobKey, reports_of
from headwater.projections.deliveries.users import progress
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import forgotten
from headwater.streams.pipeline.wiping import WipeLog

_POLL_EVERY_S: Final = 0.2
#: A response waits up to 20 s for the partitions; commands wait somewhat longer.
_POLLS: Final = 100
_USER_CHARS: Final = 512
_BLOBS: Final = "blobs"
_INSTANCES: Final = "workflow_instances"

UserId = Annotated[str, PathParameter(description="The user's id, as in deliveries.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiping:
    """Dependencies of wipes in addition to Postgres."""

    log: WipeLog
    blobs: Blobs
    new_id: Callable[[], str]
    polls: int = _POLLS


class Wiped(msgspec.Struct, frozen=True, kw_only=True):
    """State of a wipe, running or done, with the number of deleted records so far by table.

    It is `done` when every partition has finished. raw_events are deliveries, traces their traces,
    workflow_instances the instances about the user, and blobs the files of lab reports, which are
    counted only in the response to the wipe request.
    """

    ok: bool
    id: str
    wipe_id: str
    state: str
    done: bool
    deleted: dict[str, int]


def wipe_routes(reader: PooledReader, wiping: Wiping) -> list[HTTPRouteHandler]:
    """Return the routes that wipe a user and report the progress."""

    async def wipe(user_id: UserId) -> Response[Wiped]:
        _check(user_id)
        wipe_id = wiping.new_id()
        partitions = await wiping.log.order(user_id, wipe_id)
        blobs = await _delete_blobs(wiping.blobs, user_id)
        _, wiped = await poll_until(
            lambda progress: progress[1].done,
            lambda: _progress(reader, user_id, wipe_id, partitions),
            polls=wiping.polls,
            every_s=_POLL_EVERY_S,
        )
        # Files that were uploaded before the wipe took effect.
        blobs += await _delete_blobs(wiping.blobs, user_id)
        answer = msgspec.structs.replace(wiped, deleted={**wiped.deleted, _BLOBS: blobs})
        return Response(answer, status_code=HTTPStatus.OK if wiped.done else HTTPStatus.ACCEPTED)

    async def look(user_id: UserId, wipe_id: FromPath[str]) -> Wiped:
        _check(user_id)
        check_texts(_USER_CHARS, wipe_id=wipe_id)
        begun, wiped = await _progress(reader, user_id, wipe_id, await wiping.log.partitions())
        if not begun:
            raise Problem(
                "not_found",
                f"No partition has begun the wipe {wipe_id[:64]} of this user (yet); check its id, "
                "and that a pipeline worker and a projector are running.",
            )
        return wiped

    return operation_routes(
        "/user/{user_id:str}/wipe",
        "wipe",
        wipe,
        look,
        look_problems=("invalid_parameter", "broker_unavailable"),
        audit="users.wipe",
        status_code=200,
        summary="Delete everything about a user",
        description="Deletes what exists of the user: rows, deliveries, dead letters, parked "
        "deliveries, files of lab reports, and workflow instances whose params name the user in "
        "`user_id`. Duplicates of deleted deliveries are still detected. For 30 days, other "
        "deliveries that name the user or a wiped connection are skipped (`wiped`) and stored "
        "nowhere, until an `auth` that was signed after the wipe. Once requested, a wipe is "
        "carried out even if processes crash. 202 means that it is not complete yet: get the wipe "
        "by its id. Requesting it again is safe, and starts over. Topics lose the bytes when they "
        "are compacted.",
        responses={
            202: ResponseSpec(Wiped, generate_examples=False, description="It is in progress."),
            **problem_responses("invalid_parameter", "broker_unavailable", "store_unavailable"),
        },
    )


async def _progress(
    reader: PooledReader, user_id: str, wipe_id: str, partitions: int
) -> tuple[int, Wiped]:
    """Return how many partitions have begun a wipe, and its total progress."""
    deliveries = await progress(reader, user_id, wipe_id)
    workflows = await forgotten(reader, wipe_id)
    instances = 0 if workflows is None else workflows.instances
    is_done = deliveries.done == partitions and workflows is not None
    deleted = {**deliveries.deleted, _INSTANCES: instances}
    state = "done" if is_done else "running"
    wiped = Wiped(ok=True, id=wipe_id, wipe_id=wipe_id, state=state, done=is_done, deleted=deleted)
    return deliveries.begun, wiped


def _check(user_id: str) -> None:
    try:
        fits = "\0" not in user_id and len(user_id.encode()) <= _USER_CHARS
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise Problem(
            "invalid_parameter",
            f"user_id: expected a text of at most {_USER_CHARS} bytes without NUL, found "
            f"{user_id[:60]!a}",
            field="user_id",
        )


async def _delete_blobs(blobs: Blobs, user_id: str) -> int:
    try:
        return await blobs.delete_prefix(reports_of(user_id))
    except InvalidBlobKey:
        return 0  # A user with such an id cannot have any.
