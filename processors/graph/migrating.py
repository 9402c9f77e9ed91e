"""Decide whether a run can continue on another definition, and where its tokens are there.

A token moves to the node of the same ref, or to the one that the caller names. What has begun keeps
its meaning: an attempt or a child needs a node that runs the same, a token at a join needs the same
join, and a fork needs one of its group. Timers keep their recorded ends. Everything else may
differ, and applies to what the run does from then on.

A run that has failed moves as its retry will find it: attempts, children and waits begin again, and
joins are evaluated again, so these may differ, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from headwater.processors.evaluations import Evaluations
from headwater.processors.graph.definition import Definition, Node, Transition
from headwater.processors.graph.graph import Graph
from headwater.processors.graph.introspection import SHOWN_MAX
from headwater.processors.graph.nesting import Nesting, nestings_of
from headwater.processors.graph.past import Past
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun, LiveFork, LiveToken
from headwater.processors.graph.validation import JOIN_ALL
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import bounded
from headwater.schemas.failures import INSTANCE_TERMINAL, MIGRATION_REFUSED
from headwater.schemas.graph_answers import MigrationPlan, MovedToken
from headwater.schemas.history import GraphMigrated, MigrateRun, NodeMoved, is_of_app
from headwater.schemas.statuses import RunStatus

#: The built-in task, which every worker has.
_NOOP: Final = "noop"
#: Settings of a join where tokens wait that may not differ.
_JOIN_SETTINGS: Final = (
    *("sibling_group", "strategy", "timeout_ms", "on_timeout", "on_branch_failure"),
)
#: Problems that a rejection names; a plan has all of them.
_NAMED_MAX: Final = 10


class Placement(NamedTuple):
    """A live token, its node in the new definition, and why it cannot be there."""

    token: LiveToken
    to: str | None
    problem: str | None


class Migration(NamedTuple):
    """Where all live tokens are in the new definition, and problems of the whole run."""

    placements: list[Placement]
    problems: list[str]

    @property
    def possible(self) -> bool:
        """Whether the run can continue."""
        return not self.problems and all(placed.problem is None for placed in self.placements)


def plan_migration(
    run: GraphRun,
    before: Graph,
    after: Graph,
    renamed: Mapping[str, str],
    evaluations: Evaluations | None = None,
) -> Migration:
    """Place the live tokens of a run in another definition.

    Args:
        run: The run, which has not ended or has failed.
        before: Its definition.
        after: The new definition.
        renamed: Nodes of the new definition by nodes of the old one, where the refs differ.
        evaluations: Limits of schema validations.
    """
    nodes = {node.ref: node for node in after.definition.nodes}
    nestings = nestings_of(after.definition)
    placements = []
    for token in _tokens_of(run):
        to = renamed.get(token.node, token.node)
        problem = f"there is no node {to!r}" if to not in nodes else None
        problem = problem or _token_problem(run, token, before, after, to)
        problem = problem or _nesting_problem(run, token, to, nestings)
        placements.append(Placement(token, to if to in nodes else None, problem))
    problems = [
        *_renaming_problems(before, after, renamed),
        *_fork_problems(run, after),
        *_code_problems(run, before, after),
        *_value_problems(run, after, evaluations or Evaluations(None)),
    ]
    return Migration(placements, problems)


# -- tokens


def _tokens_of(run: GraphRun) -> list[LiveToken]:
    """Return the tokens of a run, with the one whose transitions are decided again by a retry."""
    tokens = [run.tokens[number] for number in sorted(run.tokens)]
    undecided = run.undecided_token
    if undecided is not None:
        tokens.append(msgspec.structs.replace(undecided, status=TokenStatus.COMPLETED))
    return tokens


def _token_problem(
    run: GraphRun, token: LiveToken, before: Graph, after: Graph, to: str
) -> str | None:
    old, new = before.node(token.node), after.node(to)
    if token.is_at_join:
        settings = ("sibling_group",) if run.ended else _JOIN_SETTINGS
        return _join_problem(token, before, after, to, settings)
    if token.status is TokenStatus.WAITING_FOR_SIBLINGS:
        return _gathering_problem(token, before, after, to, may_differ=run.ended)
    has_begun = token.status is not TokenStatus.PENDING or token.at_ms is not None
    if has_begun and not run.ended and _owner(old) != _owner(new):
        return f"it has begun {_owner_text(old)}, and {to!r} runs {_owner_text(new)}"
    return None


def _owner(node: Node) -> tuple[object, ...]:
    child = None if node.subworkflow is None else (node.subworkflow, node.timeout_ms)
    return node.task, child, node.external, node.wait, node.event


def _owner_text(node: Node) -> str:
    if node.subworkflow is not None:
        limit = f" with {node.timeout_ms} ms" if node.timeout_ms else ""
        return f"the workflow {node.subworkflow!r}{limit}"
    if node.wait is not None or node.event is not None:
        return f"the {node.owner}"
    return f"the {'job' if node.external else 'task'} {node.task!r}"


def _join_problem(
    token: LiveToken, before: Graph, after: Graph, to: str, settings: Sequence[str]
) -> str | None:
    """Return why a token that waits at a join cannot wait there in the new definition."""
    ref = token.transition or ""
    way = _transition(after.definition, ref)
    if way is None:
        return f"it waits at a join, and there is no transition {ref!r} by which it arrived"
    if way.to_node_ref != to:
        return f"it waits at a join, and transition {ref!r} leads to {way.to_node_ref!r}"
    old, new = before.transition(ref).synchronization, way.synchronization
    if new is None or old is None:
        return f"it waits at a join, and transition {ref!r} leads to none"
    for name in settings:
        mine, theirs = getattr(old, name), getattr(new, name)
        if mine != theirs:
            return (
                f"it waits at a join whose {name.replace('_', ' ')} is {mine!r}, and at {to!r} it "
                f"is {theirs!r}"
            )
    return None


def _gathering_problem(
    token: LiveToken, before: Graph, after: Graph, to: str, *, may_differ: bool
) -> str | None:
    """Return why a token cannot wait at a node for tokens by its other transitions."""
    way = _transition(after.definition, token.transition or "")
    if after.node(to).join != JOIN_ALL or way is None or way.to_node_ref != to:
        ref = token.transition
        return (
            f"it waits for the other transitions to its node, and {to!r} does not, or is not where "
            f"{ref!r} leads; keep join all and {ref!r}"
        )
    same = {*before.joined_transitions(token.node)} == {*after.joined_transitions(to)}
    if not same and not may_differ:
        return (
            f"it waits for the other transitions to its node, and those to {to!r} differ; keep "
            "them, or move the run when it has failed"
        )
    return None


def _transition(definition: Definition, ref: str) -> Transition | None:
    return next((way for way in definition.transitions if way.ref == ref), None)


# -- forks


def _nesting_problem(
    run: GraphRun, token: LiveToken, to: str, nestings: Mapping[str, set[Nesting]] | None
) -> str | None:
    """Return why a token cannot be at a node: that is inside other forks."""
    if nestings is None:
        return None
    nesting = _nesting_of(run, token)
    if token.is_at_join:
        # It continues outside of the fork that joins.
        nesting = nesting[:-1]
    if nesting in nestings.get(to, set()):
        return None
    inside = " in ".join(repr(group) for group in reversed(nesting)) or "no fork"
    return f"it is in {inside}, where no path leads to {to!r}"


def _nesting_of(run: GraphRun, token: LiveToken) -> Nesting:
    groups: list[str | None] = []
    fork = token.fork
    while fork is not None:
        groups.append(run.forks[fork].group)
        fork = run.forks[fork].origin.fork
    return tuple(reversed(groups))


def _fork_problems(run: GraphRun, after: Graph) -> Iterator[str]:
    """Yield why forks that have begun could not end: there is none like them."""
    begun: dict[tuple[str | None, str], set[str]] = {}
    for name, fork in run.forks.items():
        # A fork without a group is named after the transition that began it.
        ref = "" if fork.group is not None else name.partition(":")[2]
        begun.setdefault((fork.group, ref), set()).update(_items(run, name, fork))
    for (group, ref), items in begun.items():
        ways = [
            way
            for way in after.definition.transitions
            if way.forks and way.sibling_group == group and (group is not None or way.ref == ref)
        ]
        fork_name = f"group {group!r}" if group is not None else f"transition {ref!r}"
        if not ways:
            yield f"the fork of {fork_name} has begun, and the new definition has none"
            continue
        known = {way.foreach.item_var for way in ways if way.foreach is not None}
        for item in sorted(items - known):
            yield f"the fork of {fork_name} has begun with the items {item!r}, which it lacks now"


def _items(run: GraphRun, name: str, fork: LiveFork) -> Iterator[str]:
    for number in range(fork.total):
        branch = run.branches.get(f"{name}/{number}")
        if branch is not None and branch.item_name is not None:
            yield branch.item_name


# -- the whole run


def _renaming_problems(before: Graph, after: Graph, renamed: Mapping[str, str]) -> Iterator[str]:
    if after.definition.name != before.definition.name:
        yield f"the definition is that of {after.definition.name!r}"
    old, new = ({node.ref for node in graph.definition.nodes} for graph in (before, after))
    yield from (f"the run's definition has no node {node!r}" for node in renamed if node not in old)
    yield from (
        f"the new definition has no node {to!r}" for to in renamed.values() if to not in new
    )


def _code_problems(run: GraphRun, before: Graph, after: Graph) -> Iterator[str]:
    """Yield what the deployment of a run lacks: it has the code of the old definition only."""
    if run.deployment is None or is_of_app(run.deployment):
        return
    missing = sorted(_code_of(after.definition) - _code_of(before.definition))
    if missing:
        yield (
            f"the run stays on {run.deployment.name}, which may not have {', '.join(missing)}; "
            "restart the run on the active deployment instead"
        )


def _code_of(definition: Definition) -> set[str]:
    tasks = {node.task for node in definition.nodes if node.task and not node.external}
    children = {node.subworkflow for node in definition.nodes if node.subworkflow}
    return (tasks | children) - {_NOOP}


def _value_problems(run: GraphRun, after: Graph, evaluations: Evaluations) -> Iterator[str]:
    for schema, value, name in (
        (after.input_schema, run.input, "input"),
        (after.written_schema, run.shared, "state"),
    ):
        problem = None if schema is None else schema.problem(value, name, evaluations)
        if problem:
            yield problem


# -- commands and plans


def decide_migration(
    run: GraphRun, before: Graph, after: Graph, command: MigrateRun, evaluations: Evaluations
) -> Decision:
    """Decide about a command: an event that moves all tokens, or a rejection."""
    if run.ended and run.status is not RunStatus.ERRORED:
        return _ended(run)
    renamed = {rename.node: rename.to for rename in command.nodes}
    migration = plan_migration(run, before, after, renamed, evaluations)
    if not migration.possible:
        return _refused(_problems_of(migration))
    moved = tuple(_moved(migration.placements, before, after, renamed))
    return [GraphMigrated(command.document, command.digest, command.version, moved)]


def _problems_of(migration: Migration) -> list[str]:
    of_tokens = (
        f"token {placed.token.number} at {placed.token.node!r}: {placed.problem}"
        for placed in migration.placements
        if placed.problem is not None
    )
    return [*migration.problems, *of_tokens]


def _refused(problems: list[str]) -> Rejection:
    more = len(problems) - _NAMED_MAX
    listed = "; ".join(problems[:_NAMED_MAX]) + (f"; {more} more" if more > 0 else "")
    return Rejection(MIGRATION_REFUSED, bounded(f"the run cannot continue there: {listed}"))


def _ended(run: GraphRun) -> Rejection:
    return Rejection(
        INSTANCE_TERMINAL,
        f"expected a live or errored run of {run.instance_id}, found it {run.status}; restart it "
        "to begin a run on the newest version",
    )


def _moved(
    placements: Iterable[Placement], before: Graph, after: Graph, renamed: Mapping[str, str]
) -> Iterator[NodeMoved]:
    """Yield the nodes that the run knows by another name, or that run something else."""
    tokens: dict[str, list[int]] = {node: [] for node in renamed}
    for placed in placements:
        numbers = tokens.setdefault(placed.token.node, [])
        if placed.token.status is not TokenStatus.COMPLETED:
            numbers.append(placed.token.number)
    for node, numbers in tokens.items():
        to = renamed.get(node, node)
        old, new = before.node(node), after.node(to)
        if to != node or _owner(old) != _owner(new):
            yield NodeMoved(node, to, tuple(numbers), new.task, new.subworkflow, new.external)


def simulate_migration(
    past: Past, *, after: Graph, version: int | None, renamed: Mapping[str, str]
) -> MigrationPlan | Rejection:
    """Show where the tokens of a run would be in another definition, and its problems there."""
    run, before = past.run, past.graph
    if run.ended and run.status is not RunStatus.ERRORED:
        return _ended(run)
    if before is None:
        return _refused(["it has just begun"])
    migration = plan_migration(run, before, after, renamed, Evaluations(past.evaluator))
    placements = sorted(migration.placements, key=lambda placed: placed.problem is None)
    return MigrationPlan(
        **past.as_of(),
        version=version,
        digest=after.digest,
        possible=migration.possible,
        tokens=[_shown(placed) for placed in placements[:SHOWN_MAX]],
        problems=migration.problems,
        tokens_left_out=max(0, len(placements) - SHOWN_MAX),
    )


def _shown(placed: Placement) -> MovedToken:
    token = placed.token
    return MovedToken(
        id=str(token.number),
        node_ref=token.node,
        to_node_ref=placed.to,
        status=token.status,
        problem=placed.problem,
    )
