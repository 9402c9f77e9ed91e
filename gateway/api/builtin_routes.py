"""Operator routes that start and query built-in workflows: prunes and replays."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody

from headwater.gateway.api.audit import note
from headwater.gateway.api.json_bodies import BodySize, check_texts
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.ports import send_all
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import moment_of
from headwater.gateway.api.request_scope import AnyRequest
from headwater.gateway.builtin.instances import (
    ERASE,
    PRUNE,
    PRUNE_PAGE,
    REPLAY,
    REPLAY_PAGE,
    Pruned,
    PruneParams,
    ReplayParams,
    ReplayProgress,
)
from headwater.processors.runs.limits import WORKFLOW_NAME_MAX
from headwater.projections.deliveries.replaying import Selection, matched
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.workflows.instances import Expiry, expired_counts
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import Instance, Step
from headwater.schemas.history import StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

P = TypeVar("P", bound=msgspec.Struct)

#: A new instance becomes readable after some tens of milliseconds.
_POLL_EVERY_S: Final = 0.05
_POLLS: Final = 60
#: Entries that are searched for the last completed page.
_LATEST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinInstances:
    """Starts and queries instances of the built-in workflows.

    Attributes:
        commands: Sends commands to workflows.
        workflows: Reads instances from Postgres.
        new_id: Returns unique ids.
        clock: Returns Unix milliseconds.
    """

    commands: Commands
    workflows: Workflows
    new_id: Callable[[], str]
    clock: Callable[[], int]

    def now(self) -> str:
        """Return the current time in ISO 8601."""
        return datetime.fromtimestamp(self.clock() / 1000, UTC).isoformat()

    async def begin(self, workflow: str, params: msgspec.Struct) -> str:
        """Start an instance and wait up to three seconds until it is readable.

        Returns:
            The id of the instance.

        Raises:
            Problem: Kafka is not connected.
            Overloaded: Too many commands wait.
            NotYetReadable: Some members run a release that cannot read the command.
        """
        instance_id = self.new_id()
        start = StartRun(msgspec.json.encode(params).decode())
        with suppress(OutcomeUnknown):  # The command is in the log, so a worker will start it.
            await send_all(self.commands, [Addressed(workflow, instance_id, start)])
        for _ in range(_POLLS):
            if await self.workflows.instance(workflow, instance_id) is not None:
                break
            await asyncio.sleep(_POLL_EVERY_S)
        return instance_id

    async def find(self, workflow: str, instance_id: str, kind: type[P]) -> tuple[Instance, P]:
        """Return an instance and its params.

        Raises:
            Problem: There is no instance of this id that `begin` started.
        """
        row = await self.workflows.instance(workflow, instance_id)
        what, shown = workflow.removeprefix("headwater-"), instance_id[:64]
        if row is None:
            raise Problem("not_found", f"There is no {what} {shown} (yet).")
        try:
            return row.instance, msgspec.json.decode(row.instance.meta.params, type=kind)
        except msgspec.DecodeError:
            detail = f"{shown} is an instance of {workflow} that was not started as a {what}."
            raise Problem("not_found", detail) from None

    async def latest_entries(self, workflow: str, instance: Instance) -> Sequence[Step]:
        """Return the latest entries of an instance's run, newest first."""
        run = RunKey(workflow, instance.id, instance.meta.run_number)
        return (await self.workflows.steps(run, order="desc", limit=_LATEST)).rows


def result_of_last(name: str, entries: Sequence[Step], kind: type[P]) -> P | None:
    """Return the first result among entries with a name; None if there is none."""
    results = (entry.result for entry in entries if entry.name == name and entry.result is not None)
    last = next(results, None)
    return None if last is None else msgspec.json.decode(last, type=kind)


def state_of(instance: Instance, running: str) -> str:
    """Return the state of an instance for operators: done, failed, or `running`."""
    if instance.details.status is RunStatus.COMPLETE:
        return "done"
    return "failed" if instance.details.ended else running


# -- prunes

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=WORKFLOW_NAME_MAX)]


class PruneOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances to delete: those past their retention, of one workflow or of all."""

    workflow: _Name | None = None
    dry_run: bool = False


class PruneState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a prune.

    `state` is deleting, erasing, done or failed. A dry run has no `id`, the state dry_run, and
    counts in `by_workflow`. `kept` counts instances that changed after Postgres selected them.
    `records` is the number of history records that compaction will remove, known at the end.
    """

    id: str | None
    state: str
    matched: int
    by_workflow: dict[str, int] = {}
    deleted: int = 0
    kept: int = 0
    records: int | None = None


def prune_routes(reader: PooledReader, builtin: BuiltinInstances) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/prunes."""

    @post(
        "/prunes",
        audit="instances.prune",
        status_code=202,
        summary="Delete instances past their retention",
        description="Deletes their rows, snapshots, worker state and history; a dry run (200) "
        "counts them by workflow. An instance that changes meanwhile, for example by a restart, is "
        "kept. A prune is a workflow instance, which continues after its last page when a worker "
        "is killed. Without HEADWATER_RETENTION, no instance has a retention.",
        responses={
            200: ResponseSpec(PruneState, description="The counts of a dry run."),
            **problem_responses("broker_unavailable", "overloaded", "store_unavailable"),
        },
    )
    async def prune(request: AnyRequest, data: JSONBody[PruneOrder]) -> Response[PruneState]:
        note(request, workflow=PRUNE, dry_run=data.dry_run)
        expiry = Expiry(until=builtin.now(), workflow=data.workflow)
        counts = await expired_counts(reader, expiry)
        matched = sum(counts.values())
        if data.dry_run:
            state = PruneState(id=None, state="dry_run", matched=matched, by_workflow=counts)
            return Response(state, status_code=200)
        prune_id = await builtin.begin(PRUNE, PruneParams(asked=expiry, matched=matched))
        note(request, run_id=prune_id)
        return Response(PruneState(id=prune_id, state="deleting", matched=matched), status_code=202)

    @get(
        "/prunes/{prune_id:str}",
        summary="Get the state of a prune",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(prune_id: FromPath[str]) -> PruneState:
        instance, params = await builtin.find(PRUNE, prune_id, PruneParams)
        return await _prune_state(builtin, instance, params.matched)

    return [prune, look]


async def _prune_state(builtin: BuiltinInstances, instance: Instance, matched: int) -> PruneState:
    entries = await builtin.latest_entries(PRUNE, instance)
    progress = result_of_last(PRUNE_PAGE, entries, Pruned) or Pruned()
    erase = next((entry for entry in entries if entry.name == ERASE), None)
    state = state_of(instance, "deleting" if erase is None else "erasing")
    records = int(erase.result) if erase is not None and erase.result else None
    return PruneState(
        id=instance.id,
        state=state,
        matched=matched,
        deleted=progress.deleted,
        kept=progress.kept,
        records=records or (0 if state == "done" else None),
    )


# -- replays

_IDS_MAX: Final = 10_000
_TEXT_CHARS: Final = 512
_RATE_MAX: Final = 100_000
_OFFSET_MAX: Final = 2**63 - 1

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=_TEXT_CHARS)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=_OFFSET_MAX)]


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deliveries to replay: those that match all filters; without filters, all deliveries.

    `since` and `until` are RFC 3339 and refer to the time of receipt. `from` and `to` are offsets
    of the partition, inclusive. `rate` is in deliveries a second.
    """

    ids: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=_IDS_MAX)] | None = None
    source: _Text | None = None
    type: _Text | None = None
    user_id: _Text | None = None
    since: str | None = None
    until: str | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    from_: _Offset | None = msgspec.field(default=None, name="from")
    to: _Offset | None = None
    rate: Annotated[int, msgspec.Meta(ge=1, le=_RATE_MAX)] | None = None
    dry_run: bool = False


class InstanceNamed(msgspec.Struct, frozen=True):
    """An instance of a workflow."""

    workflow: str
    id: str


class ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replay.

    `state` is running, done or failed; a dry run is done immediately. `gone` counts deliveries
    whose bytes the log no longer has.
    """

    id: str
    state: str
    dry_run: bool
    matched: int
    replayed: int
    gone: int
    instance: InstanceNamed


def replay_routes(reader: PooledReader, builtin: BuiltinInstances) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/replays."""

    @post(
        "/replays",
        audit="instances.replay",
        body=BodySize.IDS,
        status_code=202,
        summary="Replay deliveries: process them again",
        description="Selects deliveries by ids, source, type, user, time or offsets; a dry run "
        "counts them. A replay is a workflow instance, which continues after its last page when a "
        "worker is killed. Rows that the deliveries set already do not change; workflows are not "
        "started again.",
        responses=problem_responses("broker_unavailable", "overloaded", "store_unavailable"),
    )
    async def replay(request: AnyRequest, data: JSONBody[ReplayOrder]) -> ReplayState:
        note(request, workflow=REPLAY, dry_run=data.dry_run)
        selection = _selection(data, builtin.now())
        params = ReplayParams(
            selection=selection,
            matched=await matched(reader, selection),
            user_id=selection.user_id,
            rate=data.rate or 0,
            dry_run=data.dry_run,
        )
        replay_id = await builtin.begin(REPLAY, params)
        note(request, run_id=replay_id)
        return _replay_state(replay_id, "running", params, ReplayProgress())

    @get(
        "/replays/{replay_id:str}",
        summary="Get the progress of a replay",
        responses=problem_responses("not_found", "store_unavailable"),
    )
    async def look(replay_id: FromPath[str]) -> ReplayState:
        instance, params = await builtin.find(REPLAY, replay_id, ReplayParams)
        entries = await builtin.latest_entries(REPLAY, instance)
        progress = result_of_last(REPLAY_PAGE, entries, ReplayProgress) or ReplayProgress()
        return _replay_state(replay_id, state_of(instance, "running"), params, progress)

    return [replay, look]


def _selection(order: ReplayOrder, now: str) -> Selection:
    if (order.from_ is None and order.to is None) is (order.partition is not None):
        detail = "expected partition with from or to, found one without the other"
        raise Problem("invalid_parameter", detail, field="partition")
    ids = {f"ids[{number}]": text for number, text in enumerate(order.ids or ())}
    check_texts(_TEXT_CHARS, source=order.source, type=order.type, user_id=order.user_id, **ids)
    since, until = moment_of("since", order.since), moment_of("until", order.until)
    return Selection(
        until=now if until is None else until.isoformat(),
        ids=order.ids,
        source=order.source,
        type=order.type,
        user_id=order.user_id,
        since=None if since is None else since.isoformat(),
        partition=order.partition,
        from_offset=order.from_ or 0,
        to_offset=_OFFSET_MAX if order.to is None else order.to,
    )


def _replay_state(
    replay_id: str, state: str, params: ReplayParams, progress: ReplayProgress
) -> ReplayState:
    return ReplayState(
        id=replay_id,
        state="done" if params.dry_run else state,
        dry_run=params.dry_run,
        matched=params.matched,
        replayed=progress.replayed,
        gone=progress.gone,
        instance=InstanceNamed(REPLAY, replay_id),
    )
