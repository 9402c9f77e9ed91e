"""Explain what a run waits for: which branches arrived at a join, which did not, and why."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from headwater.processors.graph.definition import Synchronization
from headwater.processors.graph.introspection import shown_failure, waits_for
from headwater.processors.graph.past import Past, PastToken, moment, moment_or_none
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import (
    GraphRun,
    LiveFork,
    LiveToken,
    branch_key,
    parse_meeting_key,
)
from headwater.processors.graph.validation import quorum
from headwater.schemas.graph_answers import ArrivedBranch, Explanation, JoinExplained, MissingBranch
from headwater.schemas.statuses import RunStatus

#: Branches listed per join, joins explained, and tokens named.
LISTED_MAX: Final = 100
JOINS_MAX: Final = 20
_NAMED_MAX: Final = 10
#: Reasons why a branch has not arrived; for several tokens, the first in this order is reported.
_ELSEWHERE: Final = "elsewhere"
_ORDER: Final = (
    *("retry", "worker", "task", "dispatch", "subworkflow"),
    *("event", "time", "resume", "siblings"),
)
_RUNNING: Final = {"task": "running"}


class _JoinContext(NamedTuple):
    """Tokens of a run, grouped for the explanation."""

    past: Past
    #: Live tokens, by the keys of all enclosing branches.
    live: Mapping[str, list[LiveToken]]
    #: The last token of a branch, live or ended.
    last: Mapping[str, PastToken]


def explain(past: Past) -> Explanation:
    """Explain a run: its joins, and what its tokens wait for."""
    run = past.run
    live = {} if run.ended else run.tokens
    meetings = {} if run.ended else run.meetings
    context = _JoinContext(past, _by_branch(run), _last_tokens(past)) if meetings else None
    joins = [_join(context, key) for key in islice(meetings, JOINS_MAX)] if context else []
    counts: dict[str, int] = {}
    for token in live.values():
        reason = waits_for(run, token).what
        counts[reason] = counts.get(reason, 0) + 1
    sentences = [_head(past, counts)]
    sentences += [line for join in joins for line in join.says]
    sentences += _others(past) if not joins and not run.ended else []
    if len(meetings) > len(joins):
        sentences.append(f"Tokens wait at {len(meetings) - len(joins)} more joins.")
    return Explanation(**past.as_of(), says=sentences, joins=joins, waiting_for=counts)


def _by_branch(run: GraphRun) -> dict[str, list[LiveToken]]:
    tokens: dict[str, list[LiveToken]] = {}
    for token in run.tokens.values():
        fork, branch = token.fork, token.branch
        while fork is not None:
            tokens.setdefault(branch_key(fork, branch), []).append(token)
            origin = run.forks[fork].origin
            fork, branch = origin.fork, origin.branch
    return tokens


def _last_tokens(past: Past) -> dict[str, PastToken]:
    return {
        branch_key(token.fork, token.branch): token
        for token in past.tokens.values()
        if token.fork is not None
    }


# -- a join


def _join(context: _JoinContext, key: str) -> JoinExplained:
    run, graph = context.past.run, context.past.graph
    assert graph is not None  # noqa: S101, a run with a join has a definition
    name, node = parse_meeting_key(key)
    fork, meeting = run.forks[name], run.meetings[key]
    synchronization = graph.transition(meeting.transition).synchronization
    assert synchronization is not None  # noqa: S101, tokens wait only at joins
    arrived, missing, counts = _branches(context, name, node, fork)
    needed = quorum(synchronization.strategy)
    join = JoinExplained(
        node_ref=node,
        transition_ref=meeting.transition,
        sibling_group=synchronization.sibling_group,
        fork=name,
        strategy=synchronization.strategy,
        total=fork.total,
        needed=needed,
        arrived_count=meeting.branches,
        missing_count=fork.total - meeting.branches,
        missing_by=counts,
        arrived=arrived,
        missing=missing,
        due_at=moment_or_none(meeting.until_ms),
        on_timeout=None if meeting.until_ms is None else synchronization.on_timeout,
        says=[],
    )
    join.says.extend(_sentences(join, synchronization))
    return join


def _branches(
    context: _JoinContext, name: str, node: str, fork: LiveFork
) -> tuple[list[ArrivedBranch], list[MissingBranch], dict[str, int]]:
    """List the branches that arrived and those that did not; count the latter by reason."""
    run = context.past.run
    arrived: list[ArrivedBranch] = []
    missing: list[MissingBranch] = []
    counts: dict[str, int] = {}
    for number in range(fork.total):
        branch = run.branches.get(branch_key(name, number))
        tokens = context.live.get(branch_key(name, number), [])
        if branch is not None and node in branch.arrived:
            waiting = next((token for token in tokens if _is_at(token, name, node)), None)
            if waiting is not None and len(arrived) < LISTED_MAX:
                at = moment(context.past.tokens[waiting.number].updated_at_ms)
                arrived.append(
                    ArrivedBranch(branch_index=number, token_id=str(waiting.number), arrived_at=at)
                )
            continue
        # For branches beyond the limit only the reason is computed, not the text.
        why, token = _reason(run, tokens)
        counts[why] = counts.get(why, 0) + 1
        if len(missing) < LISTED_MAX:
            missing.append(_missing(context, (name, number), why, token, len(tokens)))
    return arrived, missing, counts


def _is_at(token: LiveToken, fork: str, node: str) -> bool:
    waits = token.status is TokenStatus.WAITING_FOR_SIBLINGS
    return waits and token.fork == fork and token.node == node


def _reason(run: GraphRun, tokens: Sequence[LiveToken]) -> tuple[str, LiveToken | None]:
    """Return why a branch has not arrived, and its token that is the reason, if one is live."""
    first: tuple[int, LiveToken] | None = None
    for token in tokens:
        rank = _ORDER.index(waits_for(run, token).what)
        if first is None or rank < first[0]:
            first = (rank, token)
    if first is None:
        return _ELSEWHERE, None
    what = _ORDER[first[0]]
    return _RUNNING.get(what, what), first[1]


def _missing(
    context: _JoinContext, at: tuple[str, int], why: str, token: LiveToken | None, tokens: int
) -> MissingBranch:
    past, number = context.past, at[1]
    if token is None:
        ended = context.last.get(branch_key(*at))
        return MissingBranch(
            branch_index=number,
            why=why,
            says=_ended_sentence(number, ended),
            token_id=None if ended is None else str(ended.number),
            node_ref=None if ended is None else ended.node,
            status=None if ended is None else ended.status,
        )
    waits, view = waits_for(past.run, token), past.tokens[token.number]
    return MissingBranch(
        branch_index=number,
        why=why,
        says=f"Branch {number} {_doing(past, token)}.",
        token_id=str(token.number),
        node_ref=token.node,
        status=token.status,
        attempts=token.attempts,
        until=waits.until,
        error=shown_failure(view.failure),
        child_workflow_name=waits.child_workflow_name,
        child_instance_id=waits.child_instance_id,
        more_tokens=tokens - 1,
    )


# -- sentences


def _head(past: Past, counts: Mapping[str, int]) -> str:
    run = past.run
    name = f"{past.workflow}/{past.instance_id} (run {past.run_number})"
    when = f"as of sequence {past.sequence} ({_time(moment(past.at_ms))})"
    if run.ended:
        why = f": {run.failure.name}: {run.failure.message}" if run.failure else ""
        return f"{name} has ended, {when}: {run.status}{why}."
    total = sum(counts.values())
    return f"{name} is {run.status} with {_counted(total, 'token')}, {when}."


def _others(past: Past) -> Iterator[str]:
    """Describe what tokens wait for when none waits at a join."""
    tokens = past.run.tokens
    for token in islice(tokens.values(), _NAMED_MAX):
        yield f"Token {token.number} {_doing(past, token)}."
    if len(tokens) > _NAMED_MAX:
        yield f"There are {len(tokens) - _NAMED_MAX} more tokens."


def _doing(past: Past, token: LiveToken) -> str:  # noqa: PLR0911, one per reason
    """Return what a token does or waits for, as the rest of a sentence."""
    waits, failure = waits_for(past.run, token), past.tokens[token.number].failure
    node, attempt = repr(token.node), token.attempts + 1
    until = f" until {_time(waits.until)}" if waits.until else ""
    match waits.what:
        case "worker":
            task = past.graph.node(token.node).task if past.graph else ""
            return f"waits at {node} for a worker that takes {task!r} (token {token.number})"
        case "task":
            again = f", which is attempt {attempt}" if attempt > 1 else ""
            worker = f": {waits.worker!r} holds its lease{until}" if waits.worker else ""
            return f"runs {node}{again} (token {token.number}){worker}"
        case "retry":
            why = f" with {failure.name}: {failure.message}" if failure else ""
            return f"waits{until} to try {node} again: attempt {token.attempts} failed{why}"
        case "siblings":
            others = "siblings" if token.times is None else "tokens by its other transitions"
            return f"waits for {others} at {node}{until}"
        case "event":
            return f"waits at {node} for an event of type {waits.event_type!r}{until}"
        case "time":
            return f"waits at {node}{until}"
        case "resume":
            return f"has an outcome of {node}, which takes effect when the run is resumed"
        case "subworkflow":
            child = f"{waits.child_workflow_name}/{waits.child_instance_id}"
            return f"waits for {child}, which {node} has started{until}"
        case _:
            paused = past.run.status is RunStatus.PAUSED
            why = "the run is paused" if paused else "other tasks are dispatched first"
            return f"has not begun {node}: {why}"


def _ended_sentence(number: int, ended: PastToken | None) -> str:
    if ended is None:
        return f"Branch {number} has ended and cannot arrive."
    return f"Branch {number} has ended at {ended.node!r} ({ended.status}) and cannot arrive."


def _sentences(join: JoinExplained, synchronization: Synchronization) -> Iterator[str]:
    condition = {
        "any": "as soon as one has",
        "all": "when no other branch can arrive",
    }.get(join.strategy, f"when {join.needed} have")
    numbers = _named([branch.branch_index for branch in join.arrived], join.arrived_count)
    yield (
        f"At {join.node_ref!r} {_counted(join.arrived_count, 'branch')} of {join.total} of the "
        f"group {join.sibling_group!r} {_have(join.arrived_count)} arrived{numbers}; it continues "
        f"{condition}."
    )
    for branch in join.missing[:_NAMED_MAX]:
        yield branch.says
    if join.missing_count > _NAMED_MAX:
        parts = ", ".join(f"{count} {why}" for why, count in join.missing_by.items())
        yield f"Of all {join.missing_count} branches that have not arrived: {parts}."
    if join.due_at is None:
        yield f"The wait at {join.node_ref!r} has no timeout."
        return
    fails = synchronization.on_timeout == "fail"
    then = "the run fails" if fails else "the join continues with the branches that arrived"
    yield (
        f"At {_time(join.due_at)}, {synchronization.timeout_ms} ms after the first arrival at "
        f"{join.node_ref!r}, {then}."
    )


def _named(numbers: Sequence[int], total: int) -> str:
    if not numbers:
        return ""
    more = ", …" if total > _NAMED_MAX else ""
    return f" ({', '.join(map(str, numbers[:_NAMED_MAX]))}{more})"


def _counted(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _time(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
