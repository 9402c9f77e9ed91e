"""Operator routes that wipe a user and report the progress of a wipe."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath

from headwater.gateway.api.audit import attempt
from headwater.gateway.api.json_bodies import check_texts
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.operations import operation_routes, poll_until
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import UserId, check_user_id
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.api.users.connections import end_connections
from headwater.gateway.builtin.blobs.store import Blobs, InvalidBlobKey, reports_of
from headwater.gateway.builtin.terra.client import Terra
from headwater.processors.api_keys import Scope
from headwater.projections.deliveries.users import connections_of, progress, subjects_of
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import forgotten
from headwater.streams.pipeline.wiping import WipeLog

_POLL_EVERY_S: Final = 0.2
#: A response waits up to 20 s for the partitions; commands wait somewhat longer.
_POLLS: Final = 100
_USER_CHARS: Final = 512
_BLOBS: Final = "blobs"
_INSTANCES: Final = "workflow_instances"


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
    counted only in the response to the wipe request. So are `disconnected`, the number of
    connections that Terra has ended, `still_connected`, Terra's ids of those of which it did not
    confirm that in time, and `terra_list_read`: false if Terra's list could not be read, so that
    Terra may have connections which Headwater did not know; null without Terra's credentials.
    """

    ok: bool
    id: str
    wipe_id: str
    state: str
    done: bool
    deleted: dict[str, int]
    disconnected: int = 0
    still_connected: tuple[str, ...] = ()
    terra_list_read: bool | None = None


#: What the route does.
_DESCRIPTION: Final = (
    "Ends the user's connections at Terra, for which it waits some seconds: "
    "`still_connected` names those that Terra did not confirm, so disconnect them in Terra's "
    "dashboard, or repeat the wipe. If `terra_list_read` is false, look there for others, too. "
    "While Postgres cannot name the connections, the wipe is refused (`store_unavailable`). "
    "Then it deletes what exists of the user: rows, deliveries, "
    "dead letters, parked deliveries, files of lab reports, and workflow instances whose "
    "params name the user in `user_id`. Duplicates of deleted deliveries are still detected. "
    "For 30 days, other deliveries that name the user or a wiped connection are skipped "
    "(`wiped`) and stored nowhere, until an `auth` that was signed after the wipe. Once "
    "requested, a wipe is carried out even if processes crash. 202 means that it is not "
    "complete yet: get the wipe by its id. Requesting it again is safe, and starts over. "
    "Topics lose the bytes when they are compacted."
)
_RESPONSES: Final = {
    202: ResponseSpec(Wiped, generate_examples=False, description="It is in progress."),
    **problem_responses("invalid_parameter", "broker_unavailable", "store_unavailable"),
}


def wipe_routes(reader: PooledReader, wiping: Wiping, terra: Terra) -> list[HTTPRouteHandler]:
    """Return the routes that wipe a user and report the progress."""

    async def wipe(request: AnyRequest, user_id: UserId) -> Response[Wiped]:
        check_user_id(user_id)
        wipe_id = wiping.new_id()
        await attempt(request, wipe=wipe_id)
        # First, because afterwards nothing here names the connections, and Terra would go on.
        ended = await end_connections(terra, partial(connections_of, reader), user_id)
        subjects = {
            *ended.disconnected,
            *ended.still_connected,
            *await subjects_of(reader, user_id),
        }
        partitions = await wiping.log.order(user_id, wipe_id, sorted(subjects))
        blobs = await _delete_blobs(wiping.blobs, user_id)
        _, wiped = await poll_until(
            lambda progress: progress[1].done,
            lambda: _progress(reader, user_id, wipe_id, partitions),
            polls=wiping.polls,
            every_s=_POLL_EVERY_S,
        )
        # Files that were uploaded before the wipe took effect.
        blobs += await _delete_blobs(wiping.blobs, user_id)
        answer = msgspec.structs.replace(
            wiped,
            deleted={**wiped.deleted, _BLOBS: blobs},
            disconnected=len(ended.disconnected),
            still_connected=ended.still_connected,
            terra_list_read=ended.terra_list_read,
        )
        return Response(answer, status_code=HTTPStatus.OK if wiped.done else HTTPStatus.ACCEPTED)

    async def look(user_id: UserId, wipe_id: FromPath[str]) -> Wiped:
        check_user_id(user_id)
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
        looks_need=Scope.PERSONAL_DATA_READ,
        scope=Scope.PERSONAL_DATA_DELETE,
        audit="users.wipe",
        audits_attempt=True,
        status_code=200,
        summary="Delete everything about a user",
        description=_DESCRIPTION,
        responses=_RESPONSES,
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


async def _delete_blobs(blobs: Blobs, user_id: str) -> int:
    try:
        return await blobs.delete_prefix(reports_of(user_id))
    except InvalidBlobKey:
        return 0  # A user with such an id cannot have any.
