"""Why a run stands where it stands: who has come to a join, who has not, and why not."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from headwater.processors.graph.definition import Synchronization
from headwater.processors.graph.introspection import shown_failure, waits_for
from headwater.processors.graph.past import Past, moment, moment_or_none
from headwater.processors.graph.state import (
    GraphRun,
    LiveFork,
    LiveToken,
    meeting_place,
    place,
)
from headwater.processors.graph.tokens import TokenStatus
from headwater.processors.graph.validation import quorum
from headwater.processors.runs.token_views import TokenView
from headwater.schemas.introspection import (
    ArrivedBranch,
    Explanation,
    JoinExplained,
    MissingBranch,
)
from headwater.schemas.statuses import RunStatus

#: Branches that are listed of a join, joins that are explained, and tokens that are named.
LISTED_MAX: Final = 100
JOINS_MAX: Final = 20
_NAMED_MAX: Final = 10
#: What can be the reason that a branch has not arrived; of several tokens the first of these.
_ELSEWHERE: Final = "elsewhere"
_ORDER: Final = ("retry", "worker", "task", "dispatch", "subworkflow", "siblings")
_RUNNING: Final = {"task": "running"}


class _Around(NamedTuple):
    """What is known of a run, sorted for the question."""

    past: Past
    #: Tokens that live, by the places of all branches around them.
    live: Mapping[str, list[LiveToken]]
    #: The last token that a branch ever had.
    last: Mapping[str, TokenView]


def explain(past: Past) -> Explanation:
    """Explains a run: its joins that wait, and what its tokens wait for."""
    run = past.run
    live = {} if run.ended else run.tokens
    meetings = {} if run.ended else run.meetings
    around = _Around(past, _by_branch(run), _last_tokens(past)) if meetings else None
    joins = [_join(around, key) for key in islice(meetings, JOINS_MAX)] if around else []
    counts: dict[str, int] = {}
    for token in live.values():
        what = waits_for(run, token).what
        counts[what] = counts.get(what, 0) + 1
    says = [_head(past, counts)]
    says += [line for join in joins for line in join.says]
    says += _others(past) if not joins and not run.ended else []
    if len(meetings) > len(joins):
        says.append(f"There are {len(meetings) - len(joins)} more joins where somebody waits.")
    return Explanation(**past.as_of(), says=says, joins=joins, waiting_for=counts)


def _by_branch(run: GraphRun) -> dict[str, list[LiveToken]]:
    found: dict[str, list[LiveToken]] = {}
    for token in run.tokens.values():
        fork, branch = token.fork, token.branch
        while fork is not None:
            found.setdefault(place(fork, branch), []).append(token)
            origin = run.forks[fork].origin
            fork, branch = origin.fork, origin.branch
    return found


def _last_tokens(past: Past) -> dict[str, TokenView]:
    return {
        place(token.fork, token.branch): token
        for token in past.tokens.values()
        if token.fork is not None
    }


# -- a join


def _join(around: _Around, key: str) -> JoinExplained:
    run, graph = around.past.run, around.past.graph
    assert graph is not None  # noqa: S101, a meeting is of a definition
    name, node = meeting_place(key)
    fork, meeting = run.forks[name], run.meetings[key]
    joined = graph.transition(meeting.transition).synchronization
    assert joined is not None  # noqa: S101, else nobody waits there
    arrived, missing, counts = _branches(around, name, node, fork)
    needed = quorum(joined.strategy)
    join = JoinExplained(
        node_ref=node,
        transition_ref=meeting.transition,
        sibling_group=joined.sibling_group,
        fork=name,
        strategy=joined.strategy,
        total=fork.total,
        needed=needed,
        arrived_count=meeting.branches,
        missing_count=fork.total - meeting.branches,
        missing_by=counts,
        arrived=arrived,
        missing=missing,
        due_at=moment_or_none(meeting.until_ms),
        on_timeout=None if meeting.until_ms is None else joined.on_timeout,
        says=[],
    )
    join.says.extend(_sentences(join, joined))
    return join


def _branches(
    around: _Around, name: str, node: str, fork: LiveFork
) -> tuple[list[ArrivedBranch], list[MissingBranch], dict[str, int]]:
    """Who has arrived and who has not, as far as they are listed; and how many miss for what."""
    run = around.past.run
    arrived: list[ArrivedBranch] = []
    missing: list[MissingBranch] = []
    counts: dict[str, int] = {}
    for number in range(fork.total):
        branch = run.branches.get(place(name, number))
        tokens = around.live.get(place(name, number), [])
        if branch is not None and node in branch.arrived:
            there = next((each for each in tokens if _is_at(each, name, node)), None)
            if there is not None and len(arrived) < LISTED_MAX:
                at = moment(around.past.tokens[there.number].updated_at_ms)
                arrived.append(
                    ArrivedBranch(branch_index=number, token_id=str(there.number), arrived_at=at)
                )
            continue
        # Of very many only the reason is looked for, not the words.
        why, token = _reason(run, tokens)
        counts[why] = counts.get(why, 0) + 1
        if len(missing) < LISTED_MAX:
            missing.append(_missing(around, (name, number), why, token, len(tokens)))
    return arrived, missing, counts


def _is_at(token: LiveToken, fork: str, node: str) -> bool:
    waits = token.status is TokenStatus.WAITING_FOR_SIBLINGS
    return waits and token.fork == fork and token.node == node


def _reason(run: GraphRun, tokens: Sequence[LiveToken]) -> tuple[str, LiveToken | None]:
    """Why a branch has not arrived, and the token that is the reason, if one lives."""
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
    around: _Around, at: tuple[str, int], why: str, token: LiveToken | None, tokens: int
) -> MissingBranch:
    past, number = around.past, at[1]
    if token is None:
        ended = around.last.get(place(*at))
        return MissingBranch(
            branch_index=number,
            why=why,
            says=_ended_says(number, ended),
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


# -- in words


def _head(past: Past, counts: Mapping[str, int]) -> str:
    run = past.run
    who = f"{past.workflow}/{past.instance_id} (run {past.run_number})"
    when = f"as of sequence {past.sequence} ({_time(moment(past.at_ms))})"
    if run.ended:
        why = f": {run.failure.name}: {run.failure.message}" if run.failure else ""
        return f"{who} has ended, {when}: {run.status}{why}."
    total = sum(counts.values())
    return f"{who} is {run.status} with {_counted(total, 'token')}, {when}."


def _others(past: Past) -> Iterator[str]:
    """What tokens wait for where nobody waits at a join."""
    tokens = past.run.tokens
    for token in islice(tokens.values(), _NAMED_MAX):
        yield f"Token {token.number} {_doing(past, token)}."
    if len(tokens) > _NAMED_MAX:
        yield f"There are {len(tokens) - _NAMED_MAX} more tokens."


def _doing(past: Past, token: LiveToken) -> str:
    """What a token does or waits for, as the rest of a sentence."""
    waits, failure = waits_for(past.run, token), past.tokens[token.number].failure
    node, attempt = repr(token.node), token.attempts + 1
    until = f" until {_time(waits.until)}" if waits.until else ""
    match waits.what:
        case "worker":
            task = past.graph.node(token.node).task if past.graph else ""
            return f"waits at {node} for a worker that takes {task!r} (token {token.number})"
        case "task":
            again = f", which is attempt {attempt}" if attempt > 1 else ""
            worker = f": {waits.worker!r} has it{until}" if waits.worker else ""
            return f"runs {node}{again} (token {token.number}){worker}"
        case "retry":
            why = f" with {failure.name}: {failure.message}" if failure else ""
            return f"waits{until} to try {node} again: attempt {token.attempts} failed{why}"
        case "siblings":
            return f"waits itself for siblings at {node}{until}"
        case "subworkflow":
            child = f"{waits.child_workflow_name}/{waits.child_instance_id}"
            return f"waits for {child}, which {node} has started{until}"
        case _:
            paused = past.run.status is RunStatus.PAUSED
            why = "the run is paused" if paused else "others go first"
            return f"has not begun {node}: {why}"


def _ended_says(number: int, ended: TokenView | None) -> str:
    if ended is None:
        return f"Branch {number} has ended and never comes."
    return f"Branch {number} has ended at {ended.node!r} ({ended.status}) and never comes."


def _sentences(join: JoinExplained, joined: Synchronization) -> Iterator[str]:
    goes_on = {
        "any": "as soon as one has",
        "all": "when no other can bring anything more",
    }.get(join.strategy, f"when {join.needed} have")
    yield (
        f"At {join.node_ref!r} {_counted(join.arrived_count, 'branch')} of {join.total} of the "
        f"group {join.sibling_group!r} {_have(join.arrived_count)} arrived"
        f"{_named([each.branch_index for each in join.arrived], join.arrived_count)}; it goes on "
        f"{goes_on}."
    )
    for each in join.missing[:_NAMED_MAX]:
        yield each.says
    if join.missing_count > _NAMED_MAX:
        parts = ", ".join(f"{count} {why}" for why, count in join.missing_by.items())
        yield f"Of all {join.missing_count} branches that have not arrived: {parts}."
    if join.due_at is None:
        yield f"It waits at {join.node_ref!r} without a limit of time."
        return
    then = "the run fails" if joined.on_timeout == "fail" else "it goes on with those who are there"
    yield (
        f"At {_time(join.due_at)}, {joined.timeout_ms} ms after the first arrival at "
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
