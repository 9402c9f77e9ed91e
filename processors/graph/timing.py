"""Handle what time does to a run: ends of waits, deadlines, retries, and events that end waits.

Things are handled in the order of the times at which they happened, and decided as of these times.
That matters after a pause: outcomes that were held meanwhile are ordered among the deadlines. What
another party can end (an arrival, a child, an event, a worker) has until the end of its
millisecond; a wait for a time ends at that time.
"""

from collections.abc import Iterator
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from headwater.processors.graph.advancing import (
    act_and_advance,
    complete,
    end_wait,
    fail_attempt,
    fail_joins,
    fail_node,
)
from headwater.processors.graph.definition import NodeRetries
from headwater.processors.graph.dispatching import dispatch_retries, event_json, fits
from headwater.processors.graph.draft import Draft, JoinFailed, fail
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.joining import activate, fail_branch, waiting_at
from headwater.processors.graph.joins import decide_timeout
from headwater.processors.graph.planning import (
    ActivateFanIn,
    FailWorkflow,
    TokenStatus,
    UpdateTokenStatus,
)
from headwater.processors.graph.state import (
    RUN_TIMEOUT_KEY,
    GraphRun,
    Lease,
    LiveToken,
    meeting_key,
    parse_meeting_key,
)
from headwater.processors.input_texts import rfc3339
from headwater.processors.runs.decisions import Decision, RetryPolicy, retry_at_ms
from headwater.processors.runs.durations import milliseconds
from headwater.processors.runs.state import Received
from headwater.schemas.failures import (
    CHILD_WORKFLOW,
    EVENT_TIMEOUT,
    LEASE_EXPIRED,
    RUN_TIMEOUT,
    STEP_TIMEOUT,
)
from headwater.schemas.history import (
    EventReceived,
    Failure,
    LeaseExpired,
    OutcomeHeld,
    TokenArrived,
    TokensTimedOut,
)

#: Expired leases of one token before its node fails. Deployments and restarts do not stop the
#: workers of one job this often, and a job that crashes its workers stops at this number.
LEASES_LOST_MAX: Final = 10
#: Held outcomes that one decision handles, and characters of their results; a single one may
#: exceed it.
_HELD_MAX: Final = 100
_HELD_SIZE_MAX: Final = 1024 * 1024
#: Held outcomes and ends of waits that one decision handles.
_HANDLED_MAX: Final = 1_000

#: Order of things at the same time.
_END_OF_WAIT, _OUTCOME, _DEADLINE = range(3)


class _Due(NamedTuple):
    """Something that is due: a token by its number, or a deadline by its key."""

    at_ms: int
    rank: int
    position: int
    key: str


def handle_due(draft: Draft, until_ms: int, *, complete: bool) -> None:
    """Handle what is due.

    Args:
        draft: Draft of a run that is not paused.
        until_ms: Time before which everything is known that others sent.
        complete: Whether everything that was sent in that millisecond is known, too.
    """
    last_deadline_ms = until_ms if complete else until_ms - 1
    due = [*_due_times(draft, until_ms, last_deadline_ms), *_outcomes(draft.run)]
    heapify(due)
    handled = outcomes = size = 0
    while due:
        item = heappop(due)
        # The next decision, which follows at once, handles the others.
        if handled >= _HANDLED_MAX and item.rank is not _DEADLINE:
            return
        handled += item.rank is not _DEADLINE
        held = draft.run.held.get(int(item.key)) if item.rank is _OUTCOME else None
        if held is not None:
            if outcomes >= _HELD_MAX or size > _HELD_SIZE_MAX:
                return
            outcomes += 1
            size += len(held.result or "")
        before = len(draft.events)
        _handle(draft, item)
        for deadline in _new_deadlines(draft, before, last_deadline_ms):
            heappush(due, deadline)
    _retry(draft, until_ms)


def _due_times(draft: Draft, until_ms: int, last_deadline_ms: int) -> Iterator[_Due]:
    """Yield ends of waits and deadlines, as far as one decision handles them."""
    ends = last_ms = 0
    for at_ms, key in draft.due_until(until_ms + 1):
        if ends > _HANDLED_MAX and at_ms > last_ms:
            return
        token = draft.run.token_of(key)
        if token is None or token.waits_for_others:
            if at_ms <= last_deadline_ms:
                yield _Due(at_ms, _DEADLINE, 0, key)
        elif at_ms > until_ms:
            continue
        elif token.status is TokenStatus.WAITING_FOR_TIME:
            last_ms, ends = at_ms, ends + 1
            yield _Due(at_ms, _END_OF_WAIT, token.number, key)


def _outcomes(run: GraphRun) -> Iterator[_Due]:
    for position, (number, held) in enumerate(run.held.items()):
        yield _Due(held.at_ms, _OUTCOME, position, str(number))


def _new_deadlines(draft: Draft, first: int, until_ms: int) -> Iterator[_Due]:
    """Yield deadlines of joins that began with an event from `first` on, and are over already."""
    for event in draft.events[first:]:
        if isinstance(event, TokenArrived) and event.until_ms is not None:
            token = draft.run.tokens.get(event.token)
            if token is not None and token.fork is not None and event.until_ms <= until_ms:
                yield _Due(event.until_ms, _DEADLINE, 0, meeting_key(token.fork, token.node))


def _handle(draft: Draft, item: _Due) -> None:
    run = draft.run
    token = run.token_of(item.key)
    if item.rank is _DEADLINE:
        if run.times.get(item.key) == item.at_ms:
            deadline_passed(draft, item.key)
    elif token is None:
        return  # It was cancelled by something that happened before.
    elif item.rank is _OUTCOME:
        apply_held(draft, token)
    else:
        end_wait(draft, token)


def _retry(draft: Draft, until_ms: int) -> None:
    tokens = (draft.run.token_of(key) for _, key in draft.due_until(until_ms))
    numbers = [
        token.number
        for token in tokens
        if token is not None and token.status is TokenStatus.PENDING
    ]
    if numbers:
        dispatch_retries(draft, numbers)


def apply_held(draft: Draft, token: LiveToken) -> None:
    """Handle an outcome that was held, as of its time."""
    held = draft.run.held[token.number]
    with draft.at(held.at_ms):
        if held.failure is not None:
            timed_out = held.timed_out
            fail_attempt(draft, token, held.failure, held.retry_at_ms, timed_out=timed_out)
        elif held.event is not None:
            complete(draft, token, event_json(held.event), held.event.event_id)
        else:
            complete(draft, token, held.result or "null")


# -- events


def decide_event(draft: Draft, event: EventReceived, reached_ms: int) -> Decision:
    """Decide what an event ends: the oldest wait for its type, if it was sent in time."""
    run = draft.run
    received = Received(event.event_id, event.type, event.payload, event.sent_at_ms)
    number = _waiting_for(draft, received)
    if run.holds_outcomes or has_overdue_waits(draft, reached_ms):
        if number is None:
            return [event]
        held = OutcomeHeld(number, min(event.sent_at_ms, draft.now_ms), event_id=event.event_id)
        return [event, held]

    def receive(draft: Draft) -> None:
        # It is kept even if the run fails with the end of a wait.
        draft.emit(event)
        end_waits(draft, reached_ms)
        number = _waiting_for(draft, received)
        if number is not None:
            complete(draft, draft.run.tokens[number], event_json(received), event.event_id)

    return act_and_advance(draft, receive)


def _waiting_for(draft: Draft, received: Received) -> int | None:
    """Return the token that has waited longest for an event like this."""
    run = draft.run
    for number in draft.waiting_for(received.type):
        if number not in run.held and fits(received, received.type, run.tokens[number].at_ms):
            return number
    return None


def has_overdue_waits(draft: Draft, before_ms: int) -> bool:
    """Whether more waits have ended before a time than one decision handles.

    What happened at that time is held until the timer, which is due at once, has ended them.
    """
    return len(_ends_of_waits(draft, before_ms)) > _HANDLED_MAX


def _ends_of_waits(draft: Draft, before_ms: int) -> list[_Due]:
    due = _due_times(draft, before_ms - 1, before_ms - 1)
    return [item for item in due if item.rank is _END_OF_WAIT]


def end_waits(draft: Draft, before_ms: int) -> None:
    """End waits for times before this one, although their timer comes only later."""
    for due in _ends_of_waits(draft, before_ms):
        token = draft.run.token_of(due.key)
        if token is not None:
            end_wait(draft, token)


# -- deadlines


def deadline_passed(draft: Draft, key: str) -> None:
    """Handle a deadline: of the run, of a join, or of a token that waits for others."""
    with draft.at(draft.run.times.get(key)):
        token = draft.run.token_of(key)
        if key == RUN_TIMEOUT_KEY:
            if not draft.run.tokens:
                return  # It has completed before, in this decision.
            message = f"expected the run to end within {draft.run.timeout_ms} ms, found it running"
            fail(draft, Failure(RUN_TIMEOUT, message))
        elif token is None:
            _meeting_timed_out(draft, key)
        elif token.lease is not None:
            expire_lease(draft, token, token.lease, policy_of(draft.graph, token))
        elif token.child is not None:
            fail_node(draft, token, child_timed_out(draft, token), timed_out=True)
        else:
            fail_node(draft, token, _event_timed_out(draft, token), timed_out=True)


def child_timed_out(draft: Draft, token: LiveToken) -> Failure:
    """Return the error of a child that took too long."""
    node = draft.graph.node(token.node)
    message = f"Subworkflow failed: {node.subworkflow} took longer than {node.timeout_ms} ms"
    return Failure(CHILD_WORKFLOW, message)


def _event_timed_out(draft: Draft, token: LiveToken) -> Failure:
    event = draft.graph.node(token.node).event
    name = event.type if event else ""
    until = rfc3339(token.at_ms or 0)
    message = f"expected an event of type {name} for {token.node!r} until {until}, found none"
    return Failure(EVENT_TIMEOUT, message)


def _meeting_timed_out(draft: Draft, key: str) -> None:
    """Decide for the tokens with a timed-out wait at a join."""
    fork, node = parse_meeting_key(key)
    waiting, plans = waiting_at(draft, fork, node), len(draft.plans)
    transition = draft.graph.transition(draft.run.meetings[key].transition)
    for decision in draft.execute(
        decide_timeout(transition, [draft.planned(token) for token in waiting])
    ):
        match decision:
            case ActivateFanIn():
                activate(draft, fork, node)
                fail_joins(draft)
            case FailWorkflow():
                failure = Failure(decision.name, decision.error)
                of_run = _fail_branch_around(draft, fork, failure)
                if of_run is not None:
                    numbers = tuple(token.number for token in waiting)
                    draft.emit(TokensTimedOut(numbers))
                    fail(draft, of_run, numbers)
                # The tokens were cancelled with their branch.
                draft.drop_decisions(plans, UpdateTokenStatus)
                fail_joins(draft)
            case UpdateTokenStatus():
                pass  # One event is about all of them, just before the run fails.
            case _:
                raise AssertionError(decision)


def _fail_branch_around(draft: Draft, fork: str, failure: Failure) -> Failure | None:
    """Fail the branch around a fork. Return the error of the run if it cannot continue."""
    try:
        fail_branch(draft, draft.run.forks[fork].origin, failure)
    except JoinFailed as error:
        return error.failure
    return None


# -- leases and retries of tasks

_ONCE: Final = RetryPolicy(0, 0, "constant")


def policy_of(graph: Graph, token: LiveToken) -> RetryPolicy:
    """Return the retry policy of a token's task."""
    retries = graph.node(token.node).retries
    return _ONCE if retries is None else _policy(retries)


@lru_cache
def _policy(retries: NodeRetries) -> RetryPolicy:
    return RetryPolicy(retries.limit, milliseconds(retries.delay), retries.backoff)


def expire_lease(draft: Draft, token: LiveToken, lease: Lease, policy: RetryPolicy) -> None:
    """Take a job from its worker when its time is over.

    An expired lease states nothing about the job: its worker may have been stopped or disconnected.
    So the next attempt is available at once, and does not use up the node's retries. But a job can
    also crash its workers one after the other; after a number of expired leases its node fails.

    Raises:
        RunOver: The run fails with it.
    """
    attempt = token.attempts + 1
    if lease.ends_at_ms == lease.until_ms:
        failure = _attempt_timed_out(draft, token, lease)
        retry_ms = retry_at_ms(policy, attempt - token.lost, draft.now_ms)
        fail_attempt(draft, token, failure, retry_ms, timed_out=True)
        return
    lost = token.lost + 1
    failure = Failure(
        LEASE_EXPIRED,
        f'expected "{lease.worker}" to end the job of node "{token.node}", or to extend its lease, '
        f"found attempt {attempt} still with it when that ran out, {lost} of {LEASES_LOST_MAX} "
        "times",
    )
    if lost < LEASES_LOST_MAX:
        draft.emit(LeaseExpired(token.number, attempt, failure))
    else:
        fail_node(draft, token, failure, timed_out=True)


def _attempt_timed_out(draft: Draft, token: LiveToken, lease: Lease) -> Failure:
    limit_ms = draft.graph.node(token.node).timeout_ms
    return Failure(
        STEP_TIMEOUT,
        f'expected the job of node "{token.node}" to end within {limit_ms} ms, found it still with '
        f'"{lease.worker}" in attempt {token.attempts + 1}',
    )
