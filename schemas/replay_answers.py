"""Reports of replays: recorded runs replayed against code, and where the two differ."""

from typing import Annotated

import msgspec

from headwater.schemas.answers import Answer, means
from headwater.schemas.statuses import RunStatus


class ReplayPoint(Answer, frozen=True, kw_only=True):
    """An entry or event of a run, as it is recorded or as the code requests it."""

    kind: Annotated[
        str,
        means(
            "Kind of an entry, such as `do` or `sleep`, or of a graph's event; `complete` and "
            "`error` for the end of the code, `nothing` if the code requests nothing."
        ),
    ]
    name: Annotated[str, means("Key of the entry, node of the token, or the error.")] = ""
    sequence: Annotated[int | None, means("Number of its first event in the run.")] = None
    location: Annotated[str | None, means("File and line of the code, where known.")] = None


class ReplayedRun(Answer, frozen=True, kw_only=True):
    """A run that was replayed."""

    workflow_name: str
    instance_id: str
    run_number: int
    status: RunStatus
    deployment_id: Annotated[
        str | None, means("What it runs on; none if it follows the newest code.")
    ] = None
    fits: Annotated[bool, means("Whether the code requests what is recorded.")]
    moves: Annotated[
        bool, means("Whether the run would continue on this code, so that a difference matters.")
    ] = False
    reason: Annotated[str, means("Why it does not fit.")] = ""
    recorded: Annotated[ReplayPoint | None, means("The first entry that differs.")] = None
    requested: Annotated[ReplayPoint | None, means("What the code requests there.")] = None


class NotReplayed(Answer, frozen=True, kw_only=True):
    """Runs that were not replayed."""

    workflow_name: str
    runs: int
    reason: str


class WorkerLoad(Answer, frozen=True, kw_only=True):
    """Whether a worker can load the code."""

    worker: str
    loaded: bool
    answered: bool = True
    reason: Annotated[str, means("Why it cannot.")] = ""


class ReplayReport(Answer, frozen=True, kw_only=True):
    """Outcome of a check: the runs that differ first, then those that fit."""

    runs: list[ReplayedRun]
    not_replayed: Annotated[list[NotReplayed], means("Runs that were not looked at, and why.")] = (
        msgspec.field(default_factory=list)
    )
    error: Annotated[str, means("Why the code could not be loaded.")] = ""
    workers: Annotated[
        list[WorkerLoad], means("The workers that run, and whether they can load the code.")
    ] = msgspec.field(default_factory=list)

    @property
    def not_loaded(self) -> list[WorkerLoad]:
        """The workers that cannot load the code."""
        return [load for load in self.workers if load.answered and not load.loaded]

    @property
    def diverged(self) -> list[ReplayedRun]:
        """The runs that do not fit."""
        return [run for run in self.runs if not run.fits]

    @property
    def refuses(self) -> bool:
        """Whether a run would continue on code that it does not fit."""
        return any(run.moves for run in self.diverged)


#: Lines of a report as text, at most; the report itself has all.
_SHOWN_MAX = 20


def report_lines(report: ReplayReport) -> list[str]:
    """Return a report as lines for people: each run that differs, recorded next to requested."""
    lines = [report.error] if report.error else []
    diverged = report.diverged
    for run in diverged[:_SHOWN_MAX]:
        lines.append(f"{run.workflow_name}/{run.instance_id}, run {run.run_number}: {run.reason}")
        lines += [
            f"    {side}: {_point(point)}"
            for side, point in (("recorded", run.recorded), ("requested", run.requested))
            if point is not None
        ]
    if len(diverged) > _SHOWN_MAX:
        lines.append(f"… and {len(diverged) - _SHOWN_MAX} more")
    lines.append(f"{len(report.runs) - len(diverged)} of {len(report.runs)} replayed runs fit.")
    lines += [
        f"Not replayed: {skipped.runs} of {skipped.workflow_name}: {skipped.reason}"
        for skipped in report.not_replayed
    ]
    lines += [
        f"{load.worker} cannot load it: {load.reason}"
        if load.answered
        else f"{load.worker} has not answered whether it can load it{_because(load.reason)}."
        for load in report.workers
        if not load.loaded
    ]
    return lines


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def difference_of(run: ReplayedRun) -> str:
    """Return why a run does not fit as one sentence, recorded next to requested."""
    points = [
        f"{side}: {_point(point)}"
        for side, point in (("recorded", run.recorded), ("requested", run.requested))
        if point is not None
    ]
    return f"{run.reason} ({'; '.join(points)})" if points else run.reason


def _point(point: ReplayPoint) -> str:
    name = f" {point.name}" if point.name else ""
    sequence = "" if point.sequence is None else f", event {point.sequence}"
    location = f" at {point.location}" if point.location else ""
    return f"{point.kind}{name}{sequence}{location}"


def sorted_report(report: ReplayReport) -> ReplayReport:
    """Return a report with the runs that matter most first."""
    runs = sorted(report.runs, key=lambda run: (run.fits, not run.moves))
    return msgspec.structs.replace(report, runs=runs)
