"""Apply the events of a graph run: to live runs, to drafts, and for readers of histories."""

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import section_of, set_path
from headwater.processors.graph.data_flow import Arrived, merge_arrivals
from headwater.processors.graph.definition import Merge
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import (
    EndedJob,
    GraphRun,
    Lease,
    LiveBranch,
    LiveFork,
    LiveToken,
    Meeting,
    branch_key,
    digest_of_end,
    meeting_key,
    rename_joins,
)
from headwater.processors.runs import appliers as runs
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    Artifact,
    BranchChanged,
    ContextChanged,
    FanInActivated,
    ForkEnded,
    ForkOpened,
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    JobActivated,
    JobExtended,
    LeaseExpired,
    LogEvent,
    PostsSent,
    RunEvent,
    SubworkflowStarted,
    TasksDispatched,
    TaskUnderWay,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
)

_changed: Final = msgspec.structs.replace
_IDLE: Final = LiveBranch()
#: Ended jobs that a run remembers, to recognize a repeated request. Workers repeat a request
#: without a response within seconds, and at most this many jobs of a run are open at once.
_ENDED_JOBS_MAX: Final = 1_000


def begin(before: GraphRun | None, record: HistoryAppended) -> GraphRun:
    """Return the state of a new run."""
    run, event = runs.begin(GraphRun, before, record)
    run.input = json.loads(event.params)
    if before is not None and event.kept is not None:
        _resume_from(run, before)
    return run


def _resume_from(run: GraphRun, before: GraphRun) -> None:
    """Continue from a failed run; what was in flight then starts again."""
    later_ms = run.updated_at_ms - before.updated_at_ms
    run.document = before.document
    run.shared, run.results, run.latest = before.shared, before.results, before.latest
    run.created, run.undispatched = before.created, min(before.tokens, default=before.created)
    run.forks, run.branches = dict(before.forks), dict(before.branches)
    run.tokens = {number: _restarted(token) for number, token in before.tokens.items()}
    for key, meeting in before.meetings.items():
        until_ms = None if meeting.until_ms is None else meeting.until_ms + later_ms
        run.meetings[key] = _changed(meeting, until_ms=until_ms)
        if until_ms is not None:
            run.times[key] = until_ms
    _skip_dispatched(run)


def _restarted(token: LiveToken) -> LiveToken:
    if token.status is TokenStatus.WAITING_FOR_SIBLINGS:
        return token
    return _changed(
        token,
        status=TokenStatus.PENDING,
        attempts=0,
        at_ms=None,
        child=None,
        job=None,
        lease=None,
        lost=0,
    )


def apply(run: GraphRun, event: LogEvent, at_ms: int) -> GraphRun:
    """Apply an event other than RunStarted."""
    if isinstance(event, PostsSent):
        runs.posts_sent(run, event)
        return run
    runs.expect_open(run, event)
    _APPLIERS[type(event)](run, event)
    runs.applied(run, event, at_ms)
    return run


def _token(run: GraphRun, number: int) -> LiveToken:
    token = run.tokens.get(number)
    if token is None:
        raise InvariantViolation(
            f"expected a token {number} that has not ended in run {run.run_number} of "
            f"{run.workflow}/{run.instance_id}, found none"
        )
    return token


# -- branches


def _count_moving(run: GraphRun, token: LiveToken, by: int) -> None:
    """Add to the moving tokens of a token's branch. A fork counts at the token where it began."""
    key = token.branch_key
    if key is None or token.fork is None:
        return
    branch = run.branches.get(key) or LiveBranch()
    active = branch.active + by
    run.branches[key] = _changed(branch, active=active)
    if (branch.active == 0) is not (active == 0):
        fork = run.forks[token.fork]
        run.forks[token.fork] = _changed(fork, live=fork.live + (1 if active else -1))


def _end(run: GraphRun, number: int) -> LiveToken:
    """Remove a token that has ended."""
    token = _token(run, number)
    del run.tokens[number]
    if token.in_flight:
        _finish_attempt(run, token)
    run.times.pop(str(number), None)
    if token.status is TokenStatus.WAITING_FOR_SIBLINGS and token.fork is not None:
        _leave_join(run, token, token.fork)
    else:
        _count_moving(run, token, -1)
    _skip_dispatched(run)
    return token


def _finish_attempt(run: GraphRun, token: LiveToken) -> None:
    """Decrement the counts of attempts in flight."""
    run.in_flight -= 1
    if token.job is not None:
        run.jobs -= 1


def _leave_join(run: GraphRun, token: LiveToken, name: str) -> None:
    """Remove a token from the join where it waits; the last one removes the join."""
    fork = run.forks[name]
    key = meeting_key(name, token.node)
    waiting = fork.waiting - 1
    run.forks[name] = _changed(fork, waiting=waiting)
    meeting = run.meetings.get(key)
    if meeting is not None and meeting.tokens == 1:
        del run.meetings[key]
        run.times.pop(key, None)
        remaining = tuple(node for node in fork.meetings if node != token.node)
        run.forks[name] = _changed(fork, waiting=waiting, meetings=remaining)
    elif meeting is not None:
        run.meetings[key] = _changed(meeting, tokens=meeting.tokens - 1)


def _skip_dispatched(run: GraphRun) -> None:
    """Advance `undispatched` to the next token that may wait for its dispatch."""
    tokens = run.tokens
    while run.undispatched < run.created:
        token = tokens.get(run.undispatched)
        if token is not None and token.status is TokenStatus.PENDING and token.at_ms is None:
            return
        run.undispatched += 1


# -- events


def _graph_started(run: GraphRun, event: GraphStarted) -> None:
    run.document = event.document


def _fork_opened(run: GraphRun, event: ForkOpened) -> None:
    origin = run.latest
    if origin is None or origin.number != event.origin:
        raise InvariantViolation(
            f"expected fork {event.fork} to begin at the token that has just ended, found token "
            f"{event.origin} in {run.workflow}/{run.instance_id}"
        )
    run.forks[event.fork] = LiveFork(event.group, event.total, origin)
    _count_moving(run, origin, 1)


def _fork_ended(run: GraphRun, event: ForkEnded) -> None:
    fork = run.forks.pop(event.fork)
    for number in range(fork.total):
        run.branches.pop(branch_key(event.fork, number), None)
    _count_moving(run, fork.origin, -1)


def _tokens_created(run: GraphRun, event: TokensCreated) -> None:
    items = None if event.items is None else json.loads(event.items)
    times_taken = {entry.ref: entry.times for entry in event.taken}
    for offset in range(event.count):
        branch = event.branch + offset
        path = f"{event.path}{branch}" if event.count > 1 else event.path
        run.tokens[event.first + offset] = LiveToken(
            event.first + offset,
            event.node,
            path,
            event.parent,
            event.transition,
            event.fork,
            event.group,
            branch,
            event.total,
            times_taken,
        )
    if event.fork is not None:
        _count_new_tokens(run, event, event.fork, items)
    run.created = event.first + event.count
    _skip_dispatched(run)


def _count_new_tokens(
    run: GraphRun, event: TokensCreated, name: str, items: list[Any] | None
) -> None:
    """Count new tokens in their branches. The fork is replaced once for all tokens."""
    started = 0
    for offset in range(event.count):
        key = branch_key(name, event.branch + offset)
        before = run.branches.get(key) or _IDLE
        started += before.active == 0
        if items is None:
            after = _changed(before, active=before.active + 1)
        else:
            after = LiveBranch(before.active + 1, item_name=event.item_name, item=items[offset])
        run.branches[key] = after
    if started:
        fork = run.forks[name]
        run.forks[name] = _changed(fork, live=fork.live + started)


def _tasks_dispatched(run: GraphRun, event: TasksDispatched) -> None:
    runs.move(run, event)
    for task in event.tasks:
        token = _token(run, task.token)
        text = token.input if task.input is None else task.input
        run.tokens[task.token] = _changed(
            token, status=TokenStatus.DISPATCHED, input=text, at_ms=None, job=task.job
        )
        run.times.pop(str(task.token), None)
        run.jobs += task.job is not None
    run.in_flight += len(event.tasks)
    _skip_dispatched(run)


def _task_under_way(run: GraphRun, event: TaskUnderWay) -> None:
    token = _token(run, event.token)
    run.tokens[event.token] = _changed(token, status=TokenStatus.EXECUTING)


def _job_activated(run: GraphRun, event: JobActivated) -> None:
    token = _token(run, event.token)
    lease = Lease(event.worker, event.until_ms, event.ends_at_ms)
    run.tokens[event.token] = _changed(token, status=TokenStatus.EXECUTING, lease=lease)
    run.times[str(event.token)] = event.until_ms


def _job_extended(run: GraphRun, event: JobExtended) -> None:
    token = _token(run, event.token)
    if token.lease is None:
        raise InvariantViolation(f"expected token {event.token} to have a lease, found none")
    lease = _changed(token.lease, until_ms=event.until_ms)
    run.tokens[event.token] = _changed(token, lease=lease)
    run.times[str(event.token)] = event.until_ms


def _lease_expired(run: GraphRun, event: LeaseExpired) -> None:
    token = _token(run, event.token)
    run.times.pop(str(event.token), None)
    run.tokens[event.token] = _changed(
        token,
        status=TokenStatus.DISPATCHED,
        attempts=event.attempt,
        lease=None,
        lost=token.lost + 1,
    )


def _job_ended(run: GraphRun, number: int, attempt: int, *parts: str) -> None:
    """Remember how a worker ended a job."""
    ended = {token: job for token, job in run.ended_jobs.items() if token != number}
    ended[number] = EndedJob(attempt, digest_of_end(*parts))
    if len(ended) > _ENDED_JOBS_MAX:
        del ended[next(iter(ended))]
    run.ended_jobs = ended


def _token_completed(run: GraphRun, event: TokenCompleted) -> None:
    runs.move(run, event)
    run.latest = _end(run, event.token)
    if run.latest.lease is not None:
        _job_ended(run, event.token, event.attempt, event.result)


def _token_failed(run: GraphRun, event: TokenFailed) -> None:
    token = _token(run, event.token)
    if token.lease is not None and not event.timed_out:
        failure = event.failure
        parts = (failure.name, failure.message) if event.result is None else (event.result,)
        _job_ended(run, event.token, event.attempt, *parts)
    if event.retry_at_ms is None:
        # The run ends with it; a retry of the run starts it again.
        return
    _finish_attempt(run, token)
    run.times[str(event.token)] = event.retry_at_ms
    run.tokens[event.token] = _changed(
        token,
        status=TokenStatus.PENDING,
        attempts=event.attempt,
        at_ms=event.retry_at_ms,
        lease=None,
    )


def _subworkflow_started(run: GraphRun, event: SubworkflowStarted) -> None:
    token = _token(run, event.token)
    run.tokens[event.token] = _changed(
        token,
        status=TokenStatus.WAITING_FOR_SUBWORKFLOW,
        child=event.child,
        at_ms=event.until_ms,
    )
    if event.until_ms is not None:
        run.times[str(event.token)] = event.until_ms
    _skip_dispatched(run)


def _context_changed(run: GraphRun, event: ContextChanged) -> None:
    for change in event.changes:
        _set(run, change.path, json.loads(change.value))


def _set(run: GraphRun, path: str, value: Any) -> None:  # noqa: ANN401, any JSON value
    section, within = section_of(path)
    if section == "state":
        run.shared = set_path(run.shared, within, value)
    else:
        run.results = set_path(run.results, within, value)


def _branch_changed(run: GraphRun, event: BranchChanged) -> None:
    key = branch_key(event.fork, event.branch)
    branch = run.branches[key]
    run.branches[key] = _changed(branch, output={**branch.output, **json.loads(event.output)})


def _token_arrived(run: GraphRun, event: TokenArrived) -> None:
    token = _token(run, event.token)
    name, at = token.fork, token.branch_key
    if name is None or at is None:
        raise InvariantViolation(f"expected token {event.token} to be in a fork, found none")
    run.tokens[event.token] = _changed(token, status=TokenStatus.WAITING_FOR_SIBLINGS)
    _count_moving(run, token, -1)
    key, fork, branch = meeting_key(name, token.node), run.forks[name], run.branches[at]
    meeting = run.meetings.get(key)
    if meeting is None:
        meeting = Meeting(token.transition or "", until_ms=event.until_ms)
        fork = _changed(fork, meetings=(*fork.meetings, token.node))
        if event.until_ms is not None:
            run.times[key] = event.until_ms
    is_repeat = token.node in branch.arrived
    run.meetings[key] = _changed(
        meeting, tokens=meeting.tokens + 1, branches=meeting.branches + (not is_repeat)
    )
    run.forks[name] = _changed(fork, waiting=fork.waiting + 1)
    if not is_repeat:
        run.branches[at] = _changed(branch, arrived=(*branch.arrived, token.node))
    _skip_dispatched(run)


def _fan_in_activated(run: GraphRun, event: FanInActivated) -> None:
    runs.move(run, event)
    if event.merges:
        _merge(run, event)
    # These are all the tokens that wait there, so the join is removed.
    for number in event.tokens:
        _token(run, number)
        del run.tokens[number]
    key, fork = meeting_key(event.fork, event.node), run.forks[event.fork]
    run.meetings.pop(key, None)
    run.times.pop(key, None)
    run.forks[event.fork] = _changed(
        fork,
        waiting=fork.waiting - len(event.tokens),
        meetings=tuple(node for node in fork.meetings if node != event.node),
        met=(*fork.met, event.node),
    )


def _merge(run: GraphRun, event: FanInActivated) -> None:
    """Merge the outputs of branches. Output of an enclosing branch stays in that branch."""
    tokens = (_token(run, number) for number in event.tokens)
    arrived = (
        Arrived(token.transition or "", token.branch, run.branches[token.branch_key or ""].output)
        for token in tokens
    )
    merges = {
        merge.transition: Merge(source=merge.source, target=merge.target, strategy=merge.strategy)
        for merge in event.merges
    }
    merged = merge_arrivals(merges, arrived)
    if isinstance(merged, EvaluationProblem):
        raise InvariantViolation(f"expected outputs that can be merged: {merged.message}")
    outer = run.forks[event.fork].origin.branch_key
    for change in merged:
        section, within = section_of(change.path)
        if section == "output" and outer is not None:
            branch = run.branches[outer]
            output = set_path(branch.output, within, change.value)
            run.branches[outer] = _changed(branch, output=output)
        else:
            _set(run, change.path, change.value)


def _tokens_cancelled(run: GraphRun, event: TokensCancelled) -> None:
    if not event.kept:
        for number in event.tokens:
            _end(run, number)


def _graph_migrated(run: GraphRun, event: GraphMigrated) -> None:
    """Continue on another definition, where tokens and joins may be at nodes of other names."""
    run.document = event.document
    run.definition = Artifact(run.workflow, "", event.digest)
    for moved in event.nodes:
        for number in moved.tokens:
            run.tokens[number] = _changed(_token(run, number), node=moved.to)
    rename_joins(run, {moved.node: moved.to for moved in event.nodes})


def _nothing(run: GraphRun, event: RunEvent) -> None:
    """Ignore an event that only readers use."""


_APPLIERS: Final[dict[type, Callable[[GraphRun, Any], None]]] = {
    **runs.APPLIERS,
    GraphStarted: _graph_started,
    ForkOpened: _fork_opened,
    TokensCreated: _tokens_created,
    TasksDispatched: _tasks_dispatched,
    TaskUnderWay: _task_under_way,
    JobActivated: _job_activated,
    JobExtended: _job_extended,
    LeaseExpired: _lease_expired,
    TokenCompleted: _token_completed,
    TokenFailed: _token_failed,
    ContextChanged: _context_changed,
    BranchChanged: _branch_changed,
    TokenArrived: _token_arrived,
    FanInActivated: _fan_in_activated,
    TokensCancelled: _tokens_cancelled,
    TokensTimedOut: _nothing,
    ForkEnded: _fork_ended,
    SubworkflowStarted: _subworkflow_started,
    GraphMigrated: _graph_migrated,
}
