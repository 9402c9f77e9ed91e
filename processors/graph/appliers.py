"""Apply the events of a graph run: to live runs, to drafts, and for readers of histories."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
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
    leave_branch,
    leave_queue,
    live_token,
    skip_dispatched,
    without,
)
from headwater.processors.graph.planning import (
    Frames,
    InnerPath,
    Taken,
    TokenStatus,
    frames_with,
)
from headwater.processors.graph.state import (
    OUTSIDE,
    RUN_TIMEOUT_KEY,
    GraphRun,
    LiveBranch,
    LiveFork,
    LiveToken,
    Meeting,
    branch_key,
    gathering_key,
    meeting_key,
    rename_joins,
)
from headwater.processors.graph.wait_index import clear_time, drop_index, set_time
from headwater.processors.runs import appliers as runs
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import (
    Artifact,
    BranchChanged,
    BranchFailed,
    BranchOutputSet,
    ContextChanged,
    FanInActivated,
    ForkEnded,
    ForkOpened,
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    LogEvent,
    PostsSent,
    RoutingFailed,
    RunEvent,
    TokenArrived,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
    TransitionsJoined,
    WaitRestarted,
)
from headwater.schemas.statuses import ENDED

_changed: Final = msgspec.structs.replace
_IDLE: Final = LiveBranch()
#: What may happen to a run that has failed; a retry continues with it.
_AFTER_FAILURE: Final = frozenset({BranchOutputSet, GraphMigrated})


def begin(before: GraphRun | None, record: HistoryAppended) -> GraphRun:
    """Return the state of a new run."""
    run, event = runs.begin(GraphRun, before, record)
    run.input = json.loads(event.params)
    if before is not None and event.kept is not None:
        _resume_from(run, before)
    return run


def _resume_from(run: GraphRun, before: GraphRun) -> None:
    """Continue from a failed run; what was in flight then starts again."""
    run.document = before.document
    run.shared, run.results, run.latest = before.shared, before.results, before.latest
    run.undecided = before.undecided
    run.created = before.created
    run.undispatched = run.undispatched_job = min(before.tokens, default=before.created)
    held_events = [held.event for held in before.held.values() if held.event is not None]
    run.mailbox = [*held_events, *before.mailbox]
    _limit_time(run, before.timeout_ms)
    run.forks, run.branches = dict(before.forks), dict(before.branches)
    run.gatherings = dict(before.gatherings)
    run.tokens = {number: _restarted(token) for number, token in before.tokens.items()}
    # A WaitRestarted follows for those with a timeout.
    for key, meeting in before.meetings.items():
        run.meetings[key] = _changed(meeting, until_ms=None)
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
        set_time(run, RUN_TIMEOUT_KEY, run.updated_at_ms + timeout_ms)


def apply(run: GraphRun, event: LogEvent, at_ms: int) -> GraphRun:
    """Apply an event other than RunStarted."""
    if type(event) is PostsSent:
        runs.posts_sent(run, event)
        return run
    kind = type(event)
    if run.status in ENDED and kind not in _AFTER_FAILURE:
        runs.expect_open(run, event)
    _APPLIERS[kind](run, event)
    runs.applied(run, event, at_ms)
    return run


def _remove_meetings(run: GraphRun, name: str, fork: LiveFork) -> None:
    for node in fork.meetings:
        key = meeting_key(name, node)
        del run.meetings[key]
        clear_time(run, key)


# -- events


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
    branch = run.branches[origin.branch_key]
    forks = branch.forks if origin.fork is None else (*branch.forks, event.fork)
    count_moving(run, origin, branch, 1, forks=forks)


def _fork_ended(run: GraphRun, event: ForkEnded) -> None:
    fork = run.forks.pop(event.fork)
    _remove_meetings(run, event.fork, fork)
    for number in range(fork.total):
        run.branches.pop(branch_key(event.fork, number), None)
    branch = run.branches[fork.origin.branch_key]
    count_moving(run, fork.origin, branch, -1, forks=without(branch.forks, event.fork))


def _tokens_created(run: GraphRun, event: TokensCreated) -> None:
    items = None if event.items is None else json.loads(event.items)
    ancestors = _ancestors_within(run, event)
    taken = _taken(event, ancestors)
    inner, output = _left_branches(run, ancestors)
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
            taken,
            external=event.external,
            failure=event.failure,
            failed=event.failed,
            inner=inner,
            output=output,
        )
    _count_new_tokens(run, event, items)
    # All of them wait for dispatch: the first may be the next, the others are none for this kind.
    run.created = event.first + event.count
    if event.external and run.undispatched == event.first:
        run.undispatched = run.created
    elif not event.external and run.undispatched_job == event.first:
        run.undispatched_job = run.created


def _ancestors_within(run: GraphRun, event: TokensCreated) -> list[LiveToken]:
    """Return the parent of new tokens, and the origins of forks that they leave.

    It is empty if the tokens have no parent, or begin a fork.
    """
    token = run.latest
    if token is None or token.number != event.parent:
        return []
    ancestors = [token]
    while token.fork != event.fork:
        if token.fork is None:
            return []
        token = run.forks[token.fork].origin
        ancestors.append(token)
    return ancestors


def _taken(event: TokensCreated, ancestors: Sequence[LiveToken]) -> Frames:
    """Return how often new tokens took transitions since their fork began."""
    if event.transition is None:
        return ()
    counts = {entry.ref: entry.times for entry in event.taken} or {event.transition: 1}
    for left in ancestors[:-1]:
        for ref, times in Taken(left.taken).items():
            counts[ref] = counts.get(ref, 0) + times
    return frames_with(ancestors[-1].taken if ancestors else (), counts)


def _left_branches(
    run: GraphRun, ancestors: Sequence[LiveToken]
) -> tuple[InnerPath, dict[str, Any] | None]:
    """Return the branches that a token leaves for the join of an outer fork, and their output."""
    if len(ancestors) < 2:
        return (), None
    pairs = pairwise(ancestors)
    path = tuple((origin.number, left.branch) for left, origin in pairs)[::-1]
    return path, run.branches[ancestors[0].branch_key].output


def _count_new_tokens(run: GraphRun, event: TokensCreated, items: list[Any] | None) -> None:
    """Count new tokens in their branches. The fork is replaced once for all tokens."""
    started = 0
    for offset in range(event.count):
        key = OUTSIDE if event.fork is None else branch_key(event.fork, event.branch + offset)
        before = run.branches.get(key) or _IDLE
        started += before.active == 0
        # Only those of a fork are ever looked up by their branch.
        tokens = before.tokens if event.fork is None else (*before.tokens, event.first + offset)
        if items is None:
            after = _changed(before, active=before.active + 1, tokens=tokens)
        else:
            after = LiveBranch(
                before.active + 1, item_name=event.item_name, item=items[offset], tokens=tokens
            )
        run.branches[key] = after
    if started and event.fork is not None:
        fork = run.forks[event.fork]
        run.forks[event.fork] = _changed(fork, live=fork.live + started)


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
    if event.times is not None:
        _hold(run, token, event.times)
        return
    name = token.fork
    if name is None:
        raise InvariantViolation(f"expected token {event.token} to be in a fork, found none")
    branch = run.branches[token.branch_key]
    run.tokens[event.token] = _changed(token, status=TokenStatus.WAITING_FOR_SIBLINGS)
    is_repeat = token.node in branch.arrived
    arrived = branch.arrived if is_repeat else (*branch.arrived, token.node)
    branch = count_moving(run, token, branch, -1, arrived=arrived)
    key, fork = meeting_key(name, token.node), run.forks[name]
    meeting = run.meetings.get(key)
    if meeting is None:
        meeting = Meeting(token.transition or "", until_ms=event.until_ms)
        fork = _changed(fork, meetings=(*fork.meetings, token.node))
        if event.until_ms is not None:
            set_time(run, key, event.until_ms)
    run.meetings[key] = _changed(
        meeting,
        tokens=meeting.tokens + 1,
        branches=meeting.branches + (not is_repeat),
        settled=meeting.settled + (not is_repeat and branch.active == 0),
    )
    run.forks[name] = _changed(fork, waiting=fork.waiting + 1)
    leave_queue(run, event.token)


def _hold(run: GraphRun, token: LiveToken, times: int) -> None:
    """Let a token wait at a node for tokens by its other transitions."""
    status, number = TokenStatus.WAITING_FOR_SIBLINGS, token.number
    run.tokens[number] = _changed(token, status=status, times=times)
    key = gathering_key(token, times)
    run.gatherings[key] = (*run.gatherings.get(key, ()), number)
    branch = run.branches[token.branch_key]
    run.branches[token.branch_key] = _changed(branch, held=branch.held + 1)
    leave_queue(run, number)


def _transitions_joined(run: GraphRun, event: TransitionsJoined) -> None:
    for number in event.tokens:
        run.latest = end_token(run, number)


def _fan_in_activated(run: GraphRun, event: FanInActivated) -> None:
    runs.move(run, event)
    if event.merges:
        _merge(run, event)
    for number in (*event.tokens, *event.elsewhere):
        leave_branch(run, live_token(run, number))
        del run.tokens[number]
    # These are all the tokens that wait at joins of the fork, which is over.
    fork = run.forks[event.fork]
    _remove_meetings(run, event.fork, fork)
    run.forks[event.fork] = _changed(fork, waiting=0, meetings=())
    run.latest = fork.origin


def output_at_join(run: GraphRun, token: LiveToken) -> dict[str, Any]:
    """Return the output with which a token arrives at a join."""
    return run.branches[token.branch_key].output if token.output is None else token.output


def _merge(run: GraphRun, event: FanInActivated) -> None:
    """Merge the outputs of branches. Output of an enclosing branch stays in that branch."""
    tokens = (live_token(run, number) for number in event.tokens)
    arrived = (
        Arrived(token.transition or "", token.branch, output_at_join(run, token), token.inner)
        for token in tokens
    )
    merges = {
        merge.transition: Merge(source=merge.source, target=merge.target, strategy=merge.strategy)
        for merge in event.merges
    }
    merged = merge_arrivals(merges, arrived)
    if isinstance(merged, EvaluationProblem):
        raise InvariantViolation(f"expected outputs that can be merged: {merged.message}")
    origin = run.forks[event.fork].origin
    outer = None if origin.fork is None else origin.branch_key
    for change in merged:
        section, within = section_of(change.path)
        if section == "output" and outer is not None:
            branch = run.branches[outer]
            output = set_path(branch.output, within, change.value)
            run.branches[outer] = _changed(branch, output=output)
        else:
            _set(run, change.path, change.value)


def _branch_output_set(run: GraphRun, event: BranchOutputSet) -> None:
    key = branch_key(event.fork, event.branch)
    run.branches[key] = branch = _changed(run.branches[key], output=json.loads(event.output))
    # It also replaces what arrived for the branch from nested forks.
    for number in branch.tokens:
        run.tokens[number] = _changed(run.tokens[number], inner=(), output=None)


def _wait_restarted(run: GraphRun, event: WaitRestarted) -> None:
    key = meeting_key(event.fork, event.node)
    run.meetings[key] = _changed(run.meetings[key], until_ms=event.until_ms)
    set_time(run, key, event.until_ms)


def _routing_failed(run: GraphRun, event: RoutingFailed) -> None:
    if run.latest is None or run.latest.number != event.token:
        raise InvariantViolation(
            f"expected token {event.token} to have ended last in {run.workflow}/{run.instance_id}"
        )
    run.undecided = run.run_number


def _branch_failed(run: GraphRun, event: BranchFailed) -> None:
    key, fork = branch_key(event.fork, event.branch), run.forks[event.fork]
    run.branches[key] = _changed(run.branches[key], failed=True)
    run.forks[event.fork] = _changed(
        fork, failed=fork.failed + 1, failure=fork.failure or event.failure
    )


def _tokens_cancelled(run: GraphRun, event: TokensCancelled) -> None:
    if not event.kept:
        for number in event.tokens:
            end_token(run, number)


def _graph_migrated(run: GraphRun, event: GraphMigrated) -> None:
    """Continue on another definition, where tokens and joins may be at nodes of other names."""
    names = {moved.node: moved.to for moved in event.nodes}
    run.document = event.document
    run.definition = Artifact(run.workflow, "", event.digest)
    for moved in event.nodes:
        for number in moved.tokens:
            token = live_token(run, number)
            run.tokens[number] = _changed(token, node=moved.to, external=moved.external)
    run.undispatched = run.undispatched_job = min(run.tokens, default=run.created)
    skip_dispatched(run)
    rename_joins(run, names)
    drop_index(run)
    undecided = run.undecided_token
    if undecided is not None:
        run.latest = _changed(undecided, node=names.get(undecided.node, undecided.node))


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
    BranchOutputSet: _branch_output_set,
    TransitionsJoined: _transitions_joined,
    FanInActivated: _fan_in_activated,
    BranchFailed: _branch_failed,
    RoutingFailed: _routing_failed,
    WaitRestarted: _wait_restarted,
    TokensCancelled: _tokens_cancelled,
    TokensTimedOut: _nothing,
    ForkEnded: _fork_ended,
    GraphMigrated: _graph_migrated,
}
