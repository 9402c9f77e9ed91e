"""Apply the events of nodes: attempts of tasks, jobs, waits, and their ends.

Further appliers use the functions for tokens and their branches.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import (
    EndedJob,
    GraphRun,
    Held,
    Lease,
    LiveBranch,
    LiveToken,
    digest_of_end,
    gathering_key,
    meeting_key,
)
from headwater.processors.graph.wait_index import add_wait, clear_time, remove_wait, set_time
from headwater.processors.runs import appliers as runs
from headwater.processors.runs.state import Received
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    JobActivated,
    JobExtended,
    LeaseExpired,
    OutcomeHeld,
    SubworkflowStarted,
    TasksDispatched,
    TaskUnderWay,
    TokenCompleted,
    TokenFailed,
    WaitStarted,
)

V = TypeVar("V")
_changed: Final = msgspec.structs.replace
#: Ended jobs that a run remembers, to recognize a repeated request. Workers repeat a request
#: without a response within seconds, and at most this many jobs of a run are open at once.
_ENDED_JOBS_MAX: Final = 1_000


def live_token(run: GraphRun, number: int) -> LiveToken:
    """Return a token that an event is about.

    Raises:
        InvariantViolation: It has ended, or there is none.
    """
    token = run.tokens.get(number)
    if token is None:
        raise InvariantViolation(
            f"expected a token {number} that has not ended in run {run.run_number} of "
            f"{run.workflow}/{run.instance_id}, found none"
        )
    return token


def count_moving(
    run: GraphRun,
    token: LiveToken,
    branch: LiveBranch,
    by: int,
    **changes: Any,  # noqa: ANN401, fields of the branch
) -> LiveBranch:
    """Add to the moving tokens of a token's branch. A fork counts at the token where it began."""
    active = branch.active + by
    after: LiveBranch = _changed(branch, active=active, **changes)
    run.branches[token.branch_key] = after
    if token.fork is not None and (branch.active == 0) is not (active == 0):
        _count_live(run, token.fork, branch, 1 if active else -1)
    return after


def _count_live(run: GraphRun, name: str, branch: LiveBranch, change: int) -> None:
    """Count a branch that begins to move, or no longer does, in its fork and where it waits."""
    fork = run.forks[name]
    run.forks[name] = _changed(fork, live=fork.live + change)
    for node in branch.arrived:
        at = meeting_key(name, node)
        meeting = run.meetings.get(at)
        if meeting is not None:
            run.meetings[at] = _changed(meeting, settled=meeting.settled - change)


def end_token(run: GraphRun, number: int) -> LiveToken:
    """Remove a token that has ended."""
    token = live_token(run, number)
    del run.tokens[number]
    if token.in_flight:
        _finish_attempt(run, token)
    if token.at_ms is not None or token.lease is not None:
        clear_time(run, str(number))
        remove_wait(run, number)
    held = run.held.pop(number, None) if run.held else None
    if held is not None and held.event is not None:
        # Unless the token consumes it now, another one can.
        _put_back(run, held.event)
    if token.is_at_join and token.fork is not None:
        # Its fork ends with it, and with the fork its join.
        fork = run.forks[token.fork]
        run.forks[token.fork] = _changed(fork, waiting=fork.waiting - 1)
        leave_branch(run, token)
    else:
        branch = run.branches[token.branch_key]
        waiting = branch.held - (token.times is not None)
        remaining = without(branch.tokens, token.number)
        count_moving(run, token, branch, -1, held=waiting, tokens=remaining)
        if token.times is not None:
            _leave_gathering(run, token, token.times)
    leave_queue(run, number)
    return token


def _put_back(run: GraphRun, event: Received) -> None:
    """Put an event back into the mailbox, before those that were sent after it."""
    sent_ms, mailbox = event.sent_at_ms, run.mailbox
    later = (at for at, other in enumerate(mailbox) if other.sent_at_ms > sent_ms)
    mailbox.insert(next(later, len(mailbox)), event)


def leave_branch(run: GraphRun, token: LiveToken) -> None:
    """Remove a token from its branch that ends at a join."""
    key = token.branch_key
    branch = run.branches[key]
    run.branches[key] = _changed(branch, tokens=without(branch.tokens, token.number))


def without(members: tuple[V, ...], member: V) -> tuple[V, ...]:
    """Return members without one. Members outside of all forks are not kept."""
    if member not in members:
        return members
    at = members.index(member)
    return members[:at] + members[at + 1 :]


def _leave_gathering(run: GraphRun, token: LiveToken, times: int) -> None:
    key = gathering_key(token, times)
    remaining = without(run.gatherings[key], token.number)
    if remaining:
        run.gatherings[key] = remaining
    else:
        del run.gatherings[key]


def _finish_attempt(run: GraphRun, token: LiveToken) -> None:
    """Decrement the counts of attempts in flight."""
    run.in_flight -= 1
    if token.job is not None:
        run.jobs -= 1


def skip_dispatched(run: GraphRun) -> None:
    """Advance `undispatched` and `undispatched_job` to the next token that waits for dispatch."""
    run.undispatched = _next_undispatched(run, run.undispatched, external=False)
    if run.undispatched_job < run.created:
        run.undispatched_job = _next_undispatched(run, run.undispatched_job, external=True)


def leave_queue(run: GraphRun, number: int) -> None:
    """Do what `skip_dispatched` does, after a single token has stopped waiting for dispatch."""
    if number in (run.undispatched, run.undispatched_job):
        skip_dispatched(run)


def _next_undispatched(run: GraphRun, number: int, *, external: bool) -> int:
    tokens, created = run.tokens, run.created
    while number < created:
        token = tokens.get(number)
        if token is not None and token.is_undispatched and token.external is external:
            break
        number += 1
    return number


# -- events


def _tasks_dispatched(run: GraphRun, event: TasksDispatched) -> None:
    runs.move(run, event)
    for task in event.tasks:
        token = live_token(run, task.token)
        text = token.input if task.input is None else task.input
        run.tokens[task.token] = _changed(
            token, status=TokenStatus.DISPATCHED, input=text, at_ms=None, job=task.job
        )
        if token.at_ms is not None:
            clear_time(run, str(task.token))
        run.jobs += task.job is not None
    run.in_flight += len(event.tasks)
    skip_dispatched(run)


def _task_under_way(run: GraphRun, event: TaskUnderWay) -> None:
    token = live_token(run, event.token)
    run.tokens[event.token] = _changed(token, status=TokenStatus.EXECUTING)


def _job_activated(run: GraphRun, event: JobActivated) -> None:
    token = live_token(run, event.token)
    lease = Lease(event.worker, event.until_ms, event.ends_at_ms)
    run.tokens[event.token] = _changed(token, status=TokenStatus.EXECUTING, lease=lease)
    set_time(run, str(event.token), event.until_ms)


def _job_extended(run: GraphRun, event: JobExtended) -> None:
    token = live_token(run, event.token)
    if token.lease is None:
        raise InvariantViolation(f"expected token {event.token} to have a lease, found none")
    lease = _changed(token.lease, until_ms=event.until_ms)
    run.tokens[event.token] = _changed(token, lease=lease)
    set_time(run, str(event.token), event.until_ms)


def _lease_expired(run: GraphRun, event: LeaseExpired) -> None:
    token = live_token(run, event.token)
    clear_time(run, str(event.token))
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


def _wait_started(run: GraphRun, event: WaitStarted) -> None:
    token = live_token(run, event.token)
    for_time = event.event_type is None
    status = TokenStatus.WAITING_FOR_TIME if for_time else TokenStatus.WAITING_FOR_EVENT
    run.tokens[event.token] = _changed(token, status=status, at_ms=event.until_ms)
    set_time(run, str(event.token), event.until_ms)
    add_wait(run, event.token, event.event_type)
    leave_queue(run, event.token)


def _token_completed(run: GraphRun, event: TokenCompleted) -> None:
    runs.move(run, event)
    run.latest = end_token(run, event.token)
    if run.latest.lease is not None:
        _job_ended(run, event.token, event.attempt, event.result)
    _consume(run, event.consumed)


def _consume(run: GraphRun, event_id: str | None) -> Received | None:
    """Remove an event from the mailbox and return it."""
    if event_id is None:
        return None
    position = [received.event_id for received in run.mailbox].index(event_id)
    return run.mailbox.pop(position)


def _outcome_held(run: GraphRun, event: OutcomeHeld) -> None:
    token = live_token(run, event.token)
    received = _consume(run, event.event_id)
    held = Held(
        event.at_ms, event.result, event.failure, event.retry_at_ms, event.timed_out, received
    )
    run.held[event.token] = held
    clear_time(run, str(event.token))
    if token.lease is not None and not event.timed_out:
        failure = event.failure
        parts = (failure.name, failure.message) if failure else (event.result or "null",)
        _job_ended(run, event.token, token.attempts + 1, *parts)


def _token_failed(run: GraphRun, event: TokenFailed) -> None:
    token = live_token(run, event.token)
    if token.lease is not None and not event.timed_out:
        failure = event.failure
        parts = (failure.name, failure.message) if event.result is None else (event.result,)
        _job_ended(run, event.token, event.attempt, *parts)
    if event.handled:
        run.latest = end_token(run, event.token)
        _consume(run, event.consumed)
        return
    if event.retry_at_ms is None:
        # The run ends with it; a retry of the run starts it again.
        return
    run.held.pop(event.token, None)
    _finish_attempt(run, token)
    run.tokens[event.token] = _changed(
        token,
        status=TokenStatus.PENDING,
        attempts=event.attempt,
        at_ms=event.retry_at_ms,
        lease=None,
    )
    set_time(run, str(event.token), event.retry_at_ms)


def _subworkflow_started(run: GraphRun, event: SubworkflowStarted) -> None:
    token = live_token(run, event.token)
    run.tokens[event.token] = _changed(
        token,
        status=TokenStatus.WAITING_FOR_SUBWORKFLOW,
        child=event.child,
        at_ms=event.until_ms,
    )
    if event.until_ms is not None:
        set_time(run, str(event.token), event.until_ms)
    leave_queue(run, event.token)


#: Appliers of the events of nodes.
NODE_APPLIERS: Final[dict[type, Callable[[GraphRun, Any], None]]] = {
    TasksDispatched: _tasks_dispatched,
    TaskUnderWay: _task_under_way,
    JobActivated: _job_activated,
    JobExtended: _job_extended,
    LeaseExpired: _lease_expired,
    WaitStarted: _wait_started,
    SubworkflowStarted: _subworkflow_started,
    TokenCompleted: _token_completed,
    TokenFailed: _token_failed,
    OutcomeHeld: _outcome_held,
}
