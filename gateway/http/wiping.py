"""Wiping a user: what operators order, and how they hear that it is done."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, PathParameter

from headwater.gateway.blobs.store import Blobs, InvalidBlobKey, reports_of
from headwater.gateway.http.json_bodies import check_texts
from headwater.gateway.http.openapi import problem_responses
from headwater.gateway.http.ports import Wipes
from headwater.gateway.http.problems import Problem
from headwater.projections.deliveries.wiped import progress
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.workflows.about_users import forgotten

_LOOK_EVERY_S: Final = 0.2
#: An answer waits 20 s for the partitions to be done; commands wait somewhat longer.
_LOOKS: Final = 100
_USER_CHARS: Final = 512
_BLOBS: Final = "blobs"
_INSTANCES: Final = "workflow_instances"

UserId = Annotated[str, PathParameter(description="The user, as deliveries name them.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiping:
    """What wiping needs beside Postgres."""

    log: Wipes
    blobs: Blobs
    new_id: Callable[[], str]
    looks: int = _LOOKS


class Wiped(msgspec.Struct, frozen=True):
    """What was removed of a user, by table; `done` when every partition has looked everywhere.

    Shape:  raw_events are deliveries, traces their journeys, blobs files of lab reports,
            workflow_instances those that were about the user.
    """

    ok: bool
    wipe_id: str
    done: bool
    deleted: dict[str, int]


def wipe_routes(reader: PooledReader, wiping: Wiping) -> list[HTTPRouteHandler]:
    """The routes that wipe a user, and say how far that is."""

    @post(
        "/user/{user_id:str}/wipe",
        audit="users.wipe",
        status_code=200,
        summary="Forget a user",
        description="All that came of the user's deliveries so far: rows, deliveries, dead "
        "letters, what waits, files of lab reports, instances of workflows whose params name the "
        "user in `user_id`; copies of it are still known as copies, and "
        "what is delivered from now on is new. Once it is ordered it is carried out, whoever "
        "dies meanwhile: 202 says that not all of it is done yet; ask for the wipe by its id. "
        "Ordering again is safe, and begins again. Topics give up the bytes when they are "
        "compacted.",
        responses={
            202: ResponseSpec(Wiped, generate_examples=False, description="It is under way."),
            **problem_responses("invalid_parameter", "broker_unavailable", "store_unavailable"),
        },
    )
    async def wipe(user_id: UserId) -> Response[Wiped]:
        _check(user_id)
        wipe_id = wiping.new_id()
        partitions = await wiping.log.order(user_id, wipe_id)
        blobs = await _without_blobs(wiping.blobs, user_id)
        _, wiped = await _looked_at(reader, user_id, wipe_id, partitions)
        for _ in range(wiping.looks):
            if wiped.done:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
            _, wiped = await _looked_at(reader, user_id, wipe_id, partitions)
        # What was uploaded until the wipe was under way.
        blobs += await _without_blobs(wiping.blobs, user_id)
        answer = msgspec.structs.replace(wiped, deleted={**wiped.deleted, _BLOBS: blobs})
        return Response(answer, status_code=HTTPStatus.OK if wiped.done else HTTPStatus.ACCEPTED)

    @get(
        "/user/{user_id:str}/wipe/{wipe_id:str}",
        summary="See how far a wipe is",
        description="What it has removed so far, by table. Files of lab reports are counted in "
        "the answer to the order alone.",
        responses=problem_responses(
            "invalid_parameter", "not_found", "broker_unavailable", "store_unavailable"
        ),
    )
    async def see(user_id: UserId, wipe_id: FromPath[str]) -> Wiped:
        _check(user_id)
        check_texts(_USER_CHARS, wipe_id=wipe_id)
        begun, wiped = await _looked_at(reader, user_id, wipe_id, await wiping.log.partitions())
        if not begun:
            raise Problem(
                "not_found",
                f"expected a wipe of this user, found that no partition has said anything of "
                f"{wipe_id[:64]} (yet); does a pipeline worker run, and a projector?",
            )
        return wiped

    return [wipe, see]


async def _looked_at(
    reader: PooledReader, user_id: str, wipe_id: str, partitions: int
) -> tuple[int, Wiped]:
    """How many partitions have begun a wipe, and how far all of them are."""
    found, of_workflows = await progress(reader, user_id, wipe_id), await forgotten(reader, wipe_id)
    instances = 0 if of_workflows is None else of_workflows.instances
    is_done = found.done == partitions and of_workflows is not None
    return found.begun, Wiped(True, wipe_id, is_done, {**found.deleted, _INSTANCES: instances})


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


async def _without_blobs(blobs: Blobs, user_id: str) -> int:
    try:
        return await blobs.delete_prefix(reports_of(user_id))
    except InvalidBlobKey:
        return 0  # Nobody of that name can have one.
