"""Check before an activation or a move: runs are replayed against the code of a deployment.

The histories are read from Kafka, and replayed in a separate process: no step is called. Runs that
would continue on the deployment must fit it. Before an activation, for all others the report is
information: they stay on their code, and are replayed again before they are moved there.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headwater.gateway.settings.settings import Settings
from headwater.processors.runs.history_files import HistoryFileInvalid, RunHistory, history_of
from headwater.processors.runs.limits import bounded
from headwater.projections.workflows.queries import RunToReplay, Workflows
from headwater.schemas.deployments import DeploymentCreated
from headwater.schemas.history import HistoryAppended, InstanceDeleted, instance_key
from headwater.schemas.replay_answers import NotReplayed, ReplayedRun, ReplayReport, sorted_report
from headwater.schemas.statuses import ENDED
from headwater.streams.code_host.artifacts import ArtifactInvalid
from headwater.streams.workflows.app_environment import environment_of_apps
from headwater.streams.workflows.code_folders import CodeFolders
from headwater.streams.workflows.deployment_log import ArtifactLost, DeploymentLog
from headwater.streams.workflows.environments import EnvironmentFailed
from headwater.streams.workflows.history_topic import RunReader
from headwater.streams.workflows.replay_process import ReplayLimits, replay_runs

#: Part of the time of a check that reading histories may take.
_READING: Final = 0.5


class GateLimits(NamedTuple):
    """Limits of a check.

    Attributes:
        open_runs: Open runs that are replayed.
        ended_runs: Ended runs of each workflow and status that are replayed.
        history_bytes: Bytes of history that are read.
        seconds: Longest time of the whole check.
        memory_max: Memory of the process that replays, in bytes.
    """

    open_runs: int
    ended_runs: int
    history_bytes: int
    seconds: float
    memory_max: int


class ReplayGate:
    """Replays runs against deployments, one check at a time.

    Args:
        workflows: Rows of runs.
        runs: Reads histories.
        folders: The code of deployments on this machine.
        limits: Limits of a check.
        passed: Environment variables of apps, besides those that they always have.
    """

    def __init__(
        self,
        workflows: Workflows,
        runs: RunReader,
        folders: CodeFolders,
        *,
        limits: GateLimits,
        passed: Sequence[str],
    ) -> None:
        self._workflows = workflows
        self._runs = runs
        self._folders = folders
        self._limits = limits
        self._passed = passed
        self._lock = asyncio.Semaphore(1)
        #: Preparations of code that continue when a check ends, by deployment.
        self._preparing: dict[str, asyncio.Task[object]] = {}

    def close(self) -> None:
        """Cancel installations, and remove the folders of the processes that replay."""
        for preparing in self._preparing.values():
            preparing.cancel()
        self._folders.close()

    async def check(self, deployment: DeploymentCreated) -> ReplayReport:
        """Return how runs of a deployment's workflows fit it.

        Raises:
            StoreUnavailable: Postgres, which knows the runs, is not available.
            BrokerUnavailable: Kafka is not available.
        """
        async with self._lock:
            names = [workflow.name for workflow in deployment.workflows]
            limits = self._limits
            found = await self._workflows.runs_to_replay(
                names, open_runs=limits.open_runs, ended_runs=limits.ended_runs
            )
            chosen = _chosen(found, limits.open_runs)
            counts = await self._workflows.open_by_workflow(names)
            skipped = _not_chosen(counts, chosen)
            histories, unread = await self._read(chosen)
            skipped += unread
            if not histories:
                return ReplayReport(runs=[], not_replayed=skipped)
            report = await self._replay(deployment, histories)
            if report.error:
                moving = [run for run in chosen if run.follows_activation]
                report = _with_all(report, moving, [])
            return msgspec.structs.replace(report, not_replayed=[*skipped, *report.not_replayed])

    async def check_moves(
        self, deployment: DeploymentCreated, workflow: str, instance_ids: Iterable[str]
    ) -> ReplayReport:
        """Return how open runs fit a deployment to which they are to be moved.

        A run that cannot be replayed does not fit. Runs that are on the deployment, and those that
        have ended, are left out.

        Raises:
            StoreUnavailable: Postgres, which knows the runs, is not available.
            BrokerUnavailable: Kafka is not available.
        """
        located = await self._workflows.runs_of_instances(workflow, instance_ids)
        open_runs = [run for run in located if run.status not in ENDED]
        runs = [run for run in open_runs if run.deployment_id != deployment.id]
        if not runs:
            return ReplayReport(runs=[])
        async with self._lock:
            histories, unread = await self._read(runs)
            moving = [msgspec.structs.replace(history, moves=True) for history in histories]
            report = ReplayReport(runs=[])
            if moving:
                report = await self._replay(deployment, moving)
        return sorted_report(_with_all(report, runs, unread))

    # -- reading

    async def _read(
        self, runs: Sequence[RunToReplay]
    ) -> tuple[list[RunHistory], list[NotReplayed]]:
        """Read histories, partition by partition, as far as time and bytes permit."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _READING * self._limits.seconds
        budget = _ByteBudget(self._limits.history_bytes)
        histories: list[RunHistory] = []
        unread: Counter[tuple[str, str]] = Counter()
        by_partition: dict[int, list[RunToReplay]] = defaultdict(list)
        for run in runs:
            by_partition[run.partition].append(run)
        for partition, located in by_partition.items():
            keys = {instance_key(run.workflow_name, run.instance_id): run for run in located}
            starts = {key: run.offset for key, run in keys.items()}
            left_s = max(0.0, deadline_s - loop.time())
            try:
                records = await self._records(partition, starts, left_s, budget)
            except TimeoutError:
                unread.update((run.workflow_name, _NO_TIME) for run in located)
                continue
            for key, run in keys.items():
                if key in budget.exceeded:
                    unread[run.workflow_name, _NO_BYTES] += 1
                elif history := await asyncio.to_thread(_history, run, records.get(key, [])):
                    histories.append(history)
        return histories, [
            NotReplayed(workflow_name=name, runs=count, reason=reason)
            for (name, reason), count in unread.items()
        ]

    async def _records(
        self, partition: int, starts: Mapping[str, int], within_s: float, budget: "_ByteBudget"
    ) -> dict[str, list[HistoryAppended]]:
        """Return the records of instances by key.

        Raises:
            TimeoutError: The read takes too long.
        """
        records: dict[str, list[HistoryAppended]] = defaultdict(list)
        async with aclosing(self._runs.read_many(partition, starts, within_s)) as batches:
            async for batch in batches:
                await asyncio.to_thread(partial(_keep, batch, records, budget))
        return records

    # -- replaying

    async def _replay(
        self, deployment: DeploymentCreated, histories: Sequence[RunHistory]
    ) -> ReplayReport:
        try:
            return await self._replay_on(deployment, histories)
        except (ArtifactInvalid, ArtifactLost, EnvironmentFailed) as error:
            return ReplayReport(runs=[], error=error.message)
        except TimeoutError:
            return ReplayReport(runs=[], error=_NOT_PREPARED)
        except OSError as error:
            # A full disk of the gateway must not prevent a rollback.
            return ReplayReport(runs=[], error=f"the gateway cannot replay runs: {error}")
        finally:
            await self._folders.remove_scratch(deployment.id)

    async def _prepare(self, deployment: DeploymentCreated) -> None:
        """Unpack the code, and install its packages. The next check awaits the same installation.

        Raises:
            HeadwaterError: The code or its environment is not available.
        """
        name = deployment.id
        preparing = self._preparing.get(name)
        if preparing is None:
            preparing = asyncio.create_task(self._folders.prepare(deployment))
            self._preparing[name] = preparing
            preparing.add_done_callback(partial(self._prepared, name))
        await asyncio.shield(preparing)

    def _prepared(self, name: str, preparing: "asyncio.Task[object]") -> None:
        del self._preparing[name]
        if not preparing.cancelled():
            preparing.exception()  # It may have failed after the check that began it.

    async def _replay_on(
        self, deployment: DeploymentCreated, histories: Sequence[RunHistory]
    ) -> ReplayReport:
        limits, loop = self._limits, asyncio.get_running_loop()
        deadline_s = loop.time() + (1 - _READING) * limits.seconds
        async with asyncio.timeout_at(deadline_s):
            await self._prepare(deployment)
        code = await self._folders.code_of(deployment)
        declared, runs, not_replayed = await replay_runs(
            deployment.app,
            histories,
            limits=ReplayLimits(deadline_s - loop.time(), memory_max=limits.memory_max),
            environment=environment_of_apps(self._passed),
            code=code,
        )
        report = ReplayReport(runs=runs, not_replayed=not_replayed, error=declared.error)
        return sorted_report(without_folder(report, code.folder))


#: Characters of the reason why a run could not be replayed, which a page of moves repeats.
_REASON_MAX: Final = 1_000


def _with_all(
    report: ReplayReport, runs: Iterable[RunToReplay], unread: Sequence[NotReplayed]
) -> ReplayReport:
    """Add the runs that were not replayed to a report, as runs that do not fit."""
    reasons = [report.error, *(skipped.reason for skipped in (*unread, *report.not_replayed))]
    reason = bounded(next(filter(None, reasons), "its history is not complete"), _REASON_MAX)
    replayed = {run.instance_id for run in report.runs}
    missing = [
        ReplayedRun(
            workflow_name=run.workflow_name,
            instance_id=run.instance_id,
            run_number=run.run_number,
            status=run.status,
            deployment_id=run.deployment_id,
            fits=False,
            moves=True,
            reason=f"it could not be replayed: {reason}",
        )
        for run in runs
        if run.instance_id not in replayed
    ]
    return msgspec.structs.replace(report, runs=[*report.runs, *missing], not_replayed=[])


def without_folder(report: ReplayReport, folder: Path) -> ReplayReport:
    """Return a report without the path of the folder that the code was imported from."""
    text = msgspec.json.encode(report).decode()
    prefix = msgspec.json.encode(f"{folder}/").decode()[1:-1]
    return msgspec.json.decode(text.replace(prefix, ""), type=ReplayReport)


# -- choosing runs

_NO_TIME: Final = "reading their histories took too long (HEADWATER_REPLAY_S)"
_NO_BYTES: Final = "their histories are too large together (HEADWATER_REPLAY_MIB)"
_NOT_PREPARED: Final = (
    "the gateway is still installing its packages (HEADWATER_REPLAY_S); repeat it in a moment"
)
_NOT_CHOSEN: Final = "there are more open runs than are looked at (HEADWATER_REPLAY_RUNS)"


def _chosen(found: Iterable[RunToReplay], open_max: int) -> list[RunToReplay]:
    """Return the runs to replay: those that would continue on the deployment come first."""
    open_runs: list[RunToReplay] = []
    ended: list[RunToReplay] = []
    for run in found:
        (ended if run.status in ENDED else open_runs).append(run)
    open_runs.sort(key=lambda run: not run.follows_activation)
    return [*open_runs[:open_max], *ended]


def _not_chosen(counts: Mapping[str, int], chosen: Iterable[RunToReplay]) -> list[NotReplayed]:
    """Return how many open runs are not replayed, by workflow."""
    looked_at = Counter(run.workflow_name for run in chosen if run.status not in ENDED)
    return [
        NotReplayed(workflow_name=name, runs=count - looked_at[name], reason=_NOT_CHOSEN)
        for name, count in counts.items()
        if count > looked_at[name]
    ]


# -- histories


class _ByteBudget:
    """Bytes of history that may still be read.

    Attributes:
        exceeded: Keys of instances whose records were dropped.
    """

    def __init__(self, left: int) -> None:
        self.left = left
        self.exceeded: set[str] = set()


_ENCODER: Final = msgspec.msgpack.Encoder()


def _keep(
    batch: Iterable[HistoryAppended], records: dict[str, list[HistoryAppended]], budget: _ByteBudget
) -> None:
    """Keep records by instance. Once the budget is used up, drop instances with further records."""
    for record in batch:
        key = instance_key(record.workflow, record.instance_id)
        if key in budget.exceeded:
            continue
        size = len(_ENCODER.encode(record))
        if size > budget.left:
            budget.exceeded.add(key)
            budget.left += sum(len(_ENCODER.encode(kept)) for kept in records.pop(key, []))
        else:
            budget.left -= size
            records[key].append(record)


def _history(run: RunToReplay, records: Sequence[HistoryAppended]) -> RunHistory | None:
    """Return the history of a run; None if it was deleted meanwhile."""
    if any(isinstance(event, InstanceDeleted) for one in records for event in one.events):
        return None
    try:
        history = history_of(records, run.run_number, run.status)
    except HistoryFileInvalid:
        return None
    return msgspec.structs.replace(history, moves=run.follows_activation)


# -- assembly


def replay_gate(
    settings: Settings, workflows: Workflows, runs: RunReader, deployments: DeploymentLog
) -> ReplayGate:
    """Return the gate of a gateway."""
    return ReplayGate(
        workflows,
        runs,
        CodeFolders(deployments, settings.state_dir, settings.environment_policy),
        limits=GateLimits(
            open_runs=settings.replay_runs,
            ended_runs=settings.replay_ended_runs,
            history_bytes=settings.replay_bytes,
            seconds=settings.replay_s,
            memory_max=settings.check_memory_mib * 1024 * 1024,
        ),
        passed=settings.app_environment,
    )
