"""Apply the events of a graph run: to live runs, to drafts, and for readers of histories."""

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import EvaluationProblem
from headwater.processors.graph.context import section_of, set_path
from headwater.processors.graph.data_flow import Arrived, merge_arrivals
from headwater.processors.graph.definition import Merge
from headwater.processors.graph.node_appliers import (
    NODE_APPLIERS,
    count_moving,
    end_token,
    live_token,
    skip_dispatched,
)
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import (
    RUN_TIMEOUT_KEY,
    GraphRun,
    LiveBranch,
    LiveFork,
    LiveToken,
    Meeting,
    branch_key,
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
    LogEvent,
    PostsSent,
    RunEvent,
    TokenArrived,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
)

_changed: Final = msgspec.structs.replace
_IDLE: Final = LiveBranch()


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
    run.created = before.created
    run.undispatched = run.undispatched_job = min(before.tokens, default=before.created)
    held_events = [held.event for held in before.held.values() if held.event is not None]
    run.mailbox = [*held_events, *before.mailbox]
    _limit_time(run, before.timeout_ms)
    run.forks, run.branches = dict(before.forks), dict(before.branches)
    run.tokens = {number: _restarted(token) for number, token in before.tokens.items()}
    for key, meeting in before.meetings.items():
        until_ms = None if meeting.until_ms is None else meeting.until_ms + later_ms
        run.meetings[key] = _changed(meeting, until_ms=until_ms)
        if until_ms is not None:
            run.times[key] = until_ms
    skip_dispatched(run)


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


def _limit_time(run: GraphRun, timeout_ms: int | None) -> None:
    """Set the timeout of a run that begins now."""
    run.timeout_ms = timeout_ms
    if timeout_ms is not None:
        run.times[RUN_TIMEOUT_KEY] = run.updated_at_ms + timeout_ms


def apply(run: GraphRun, event: LogEvent, at_ms: int) -> GraphRun:
    """Apply an event other than RunStarted."""
    if isinstance(event, PostsSent):
        runs.posts_sent(run, event)
        return run
    runs.expect_open(run, event)
    _APPLIERS[type(event)](run, event)
    runs.applied(run, event, at_ms)
    return run


def _graph_started(run: GraphRun, event: GraphStarted) -> None:
    run.document = event.document
    _limit_time(run, event.timeout_ms)


def _fork_opened(run: GraphRun, event: ForkOpened) -> None:
    origin = run.latest
    if origin is None or origin.number != event.origin:
        raise InvariantViolation(
            f"expected fork {event.fork} to begin at the token that has just ended, found token "
            f"{event.origin} in {run.workflow}/{run.instance_id}"
        )
    run.forks[event.fork] = LiveFork(event.group, event.total, origin)
    count_moving(run, origin, 1)


def _fork_ended(run: GraphRun, event: ForkEnded) -> None:
    fork = run.forks.pop(event.fork)
    for number in range(fork.total):
        run.branches.pop(branch_key(event.fork, number), None)
    count_moving(run, fork.origin, -1)


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
            external=event.external,
            failure=event.failure,
        )
    if event.fork is not None:
        _count_new_tokens(run, event, event.fork, items)
    run.created = event.first + event.count
    skip_dispatched(run)


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
    token = live_token(run, event.token)
    name, at = token.fork, token.branch_key
    if name is None or at is None:
        raise InvariantViolation(f"expected token {event.token} to be in a fork, found none")
    run.tokens[event.token] = _changed(token, status=TokenStatus.WAITING_FOR_SIBLINGS)
    count_moving(run, token, -1)
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
    skip_dispatched(run)


def _fan_in_activated(run: GraphRun, event: FanInActivated) -> None:
    runs.move(run, event)
    if event.merges:
        _merge(run, event)
    # These are all the tokens that wait there, so the join is removed.
    for number in event.tokens:
        live_token(run, number)
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
    tokens = (live_token(run, number) for number in event.tokens)
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
            end_token(run, number)


def _graph_migrated(run: GraphRun, event: GraphMigrated) -> None:
    """Continue on another definition, where tokens and joins may be at nodes of other names."""
    run.document = event.document
    run.definition = Artifact(run.workflow, "", event.digest)
    for moved in event.nodes:
        for number in moved.tokens:
            token = live_token(run, number)
            run.tokens[number] = _changed(token, node=moved.to, external=moved.external)
    run.undispatched = run.undispatched_job = min(run.tokens, default=run.created)
    skip_dispatched(run)
    rename_joins(run, {moved.node: moved.to for moved in event.nodes})


def _nothing(run: GraphRun, event: RunEvent) -> None:
    """Ignore an event that only readers use."""


_APPLIERS: Final[dict[type, Callable[[GraphRun, Any], None]]] = {
    **runs.APPLIERS,
    **NODE_APPLIERS,
    GraphStarted: _graph_started,
    ForkOpened: _fork_opened,
    TokensCreated: _tokens_created,
    ContextChanged: _context_changed,
    BranchChanged: _branch_changed,
    TokenArrived: _token_arrived,
    FanInActivated: _fan_in_activated,
    TokensCancelled: _tokens_cancelled,
    TokensTimedOut: _nothing,
    ForkEnded: _fork_ended,
    GraphMigrated: _graph_migrated,
}
