"""Check whether the parts of a definition agree. Every problem has a code and a path."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from headwater.processors.graph.context import (
    PATH_MAX,
    RESERVED,
    SEGMENTS_MAX,
    is_text,
    limit_problem,
    overlapping,
    path_problem,
)
from headwater.processors.graph.definition import (
    DUPLICATE_NODE_REF,
    DUPLICATE_TRANSITION_REF,
    INVALID_DEFINITION,
    INVALID_EXPRESSION,
    INVALID_NODE_REF,
    INVALID_SIBLING_GROUP,
    INVALID_STRATEGY,
    INVALID_TARGET,
    MISSING_OWNER,
    MULTIPLE_OWNERS,
    ON_ERROR,
    ON_SUCCESS,
    Definition,
    Merge,
    Node,
    NodeRetries,
    Problem,
    Synchronization,
    Transition,
    Wait,
)
from headwater.processors.graph.nesting import problems_of_merges
from headwater.processors.runs.durations import LONGEST_MS, milliseconds_of
from headwater.processors.runs.limits import (
    EVENT_TYPE_TOP,
    RETRIES_MAX,
    WAIT_MAX_MS,
    WORKFLOW_NAME_MAX,
    control_character,
    name_problem,
)

#: Maximum branches of one fork. A run keeps all of them in memory, and its events must fit into
#: records of a megabyte. This is ten times the largest known use.
BRANCHES_MAX: Final = 100_000

STRATEGIES: Final = ("any", "all", "m_of_n:N")
MERGES: Final = ("append", "collect", "keyed_by_branch", "last_wins", "merge_object")
TIMEOUTS: Final = ("fail", "proceed_with_available")
TOLERATE: Final = "tolerate"
JOIN_ALL: Final = "all"
NODE_JOINS: Final = ("each", JOIN_ALL)
BRANCH_FAILURES: Final = ("fail", TOLERATE)
BACKOFFS: Final = ("constant", "exponential", "linear")
#: Kinds of nodes; a node is of exactly one.
KINDS: Final = ("task", "subworkflow", "wait", "event")
DEAD_ENDS: Final = ("complete", "fail")
FAN_IN: Final = "fan_in"

#: Maximum of counts without another limit: a signed 64-bit number.
_NUMBER_MAX: Final = 2**63 - 1
_M_OF_N: Final = re.compile(r"m_of_n:([1-9]\d{0,8})")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SOURCE: Final = re.compile(r"_branch\.output(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
#: Maximum characters of the names of a graph's parts. They are stored in keys, records and rows;
#: in UTF-8 one has at most 1,024 bytes, of the 2,704 that a Postgres index entry allows.
NAME_MAX: Final = 256
#: Maximum characters of the ref of a node or a transition: a path of a token has one per fork.
REF_MAX: Final = 128


def quorum(strategy: str) -> int | None:
    """Return N of `m_of_n:N`; None for any other strategy."""
    match = _M_OF_N.fullmatch(strategy)
    return int(match[1]) if match else None


def may_be_item(name: str) -> bool:
    """Whether an item variable may have this name."""
    return _NAME.fullmatch(name) is not None and name not in RESERVED


def problems_of(definition: Definition, *, whole: bool = True) -> list[Problem]:
    """Return all problems of a definition except those within expressions. Takes linear time.

    Args:
        definition: The definition.
        whole: False for a part of a definition; its groups may be forked elsewhere.

    Returns:
        The problems in the order of the document; empty if there are none.
    """
    return [
        *_of_the_whole(definition),
        *_repeated(DUPLICATE_NODE_REF, "nodes", [node.ref for node in definition.nodes]),
        *_repeated(
            DUPLICATE_TRANSITION_REF, "transitions", [way.ref for way in definition.transitions]
        ),
        *_check_parts("nodes", definition.nodes, _of_node),
        *_of_endpoints(definition),
        *_check_parts("transitions", definition.transitions, _of_transition),
        *(_of_groups(definition) if whole else ()),
        *_of_joins(definition),
        *_of_joined_transitions(definition),
        *problems_of_merges(definition),
    ]


def _of_the_whole(definition: Definition) -> Iterator[Problem]:
    problem = name_problem("the name of a graph", definition.name, WORKFLOW_NAME_MAX)
    if problem:
        yield Problem(INVALID_DEFINITION, "name", problem)
    for code, path, message in _of_targets("outputMapping", definition.output_mapping):
        yield Problem(code, path, message)
    if not any(node.ref == definition.initial_node_ref for node in definition.nodes):
        yield _unknown_node("initialNodeRef", definition.initial_node_ref)
    for code, path, message in (
        *_not_within("timeoutMs", definition.timeout_ms, 1, LONGEST_MS),
        *_not_among(INVALID_DEFINITION, "onDeadEnd", definition.on_dead_end, DEAD_ENDS),
    ):
        yield Problem(code, path, message)


def _repeated(code: str, path: str, refs: list[str]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, ref in enumerate(refs):
        if ref in first:
            before = f"{path}[{first[ref]}]"
            yield Problem(code, f"{path}[{index}].ref", f"{ref!r} is the ref of {before} already")
        elif problem := _name_problem(ref, REF_MAX):
            wrong = INVALID_TARGET if len(ref) > REF_MAX else INVALID_DEFINITION
            yield Problem(wrong, f"{path}[{index}].ref", problem)
        first.setdefault(ref, index)


def _name_problem(name: str, limit: int = NAME_MAX) -> str | None:
    """Return what is wrong with a name that an author gives to a part of a graph, if anything."""
    if not name:
        return "expected a name, found ''"
    if len(name) > limit:
        shown = f"{name[:80]}…"
        return f"expected a name of at most {limit} characters, found {len(name)} in {shown!r}"
    if control_character(name):
        return f"expected a name without control characters, found {name!r}"
    return None if is_text(name) else f"expected text that UTF-8 can hold, found {name!r}"


def _named(**names: str | None) -> Iterator[tuple[str, str, str]]:
    for field, name in names.items():
        if name is not None and (problem := _name_problem(name)):
            yield INVALID_DEFINITION, field, problem


def _check_parts(
    path: str,
    parts: Iterable[object],
    check: Callable[..., Iterable[tuple[str, str, str]]],
) -> Iterator[Problem]:
    for index, part in enumerate(parts):
        for code, field, message in check(part):
            location = f"{path}[{index}].{field}" if field else f"{path}[{index}]"
            yield Problem(code, location, message)


def _of_node(node: Node) -> Iterator[tuple[str, str, str]]:
    kinds = [kind for kind in KINDS if getattr(node, kind) is not None]
    if len(kinds) != 1:
        code = MULTIPLE_OWNERS if kinds else MISSING_OWNER
        present = " and ".join(kinds) or "none"
        yield code, "", f"expected one of {', '.join(KINDS)} in {node.ref!r}, found {present}"
    yield from _of_waiting_node(node)
    if node.external and node.task is None:
        yield INVALID_DEFINITION, "external", "expected it only on a node with a task"
    for field, name in (("task", node.task), ("subworkflow", node.subworkflow)):
        if name is not None and (
            problem := name_problem(f"the name of a {field}", name, WORKFLOW_NAME_MAX)
        ):
            yield INVALID_DEFINITION, field, problem
    yield from _not_among(INVALID_STRATEGY, "join", node.join, NODE_JOINS)
    yield from _of_targets("inputMapping", node.input_mapping)
    yield from _of_targets("outputMapping", node.output_mapping, shared=True)
    yield from _not_within("timeoutMs", node.timeout_ms, 1, LONGEST_MS)
    if node.retries is not None:
        yield from _of_retries(node, node.retries)


def _of_waiting_node(node: Node) -> Iterator[tuple[str, str, str]]:
    """Check a node that waits for a time or an event: it has neither an input nor attempts."""
    if node.wait is None and node.event is None:
        return
    for field, value in (("inputMapping", node.input_mapping), ("timeoutMs", node.timeout_ms)):
        if value:
            message = "expected it only on a node with a task or a subworkflow"
            yield INVALID_DEFINITION, field, message
    if node.wait is not None:
        yield from _of_wait(node.wait)
    if node.event is not None:
        problem = name_problem("the type of an event", node.event.type, EVENT_TYPE_TOP)
        if problem:
            yield INVALID_DEFINITION, "event.type", problem
        yield from _not_within("event.timeoutMs", node.event.timeout_ms, 1, WAIT_MAX_MS)


def _of_wait(wait: Wait) -> Iterator[tuple[str, str, str]]:
    if (wait.duration_ms is None) == (wait.until is None):
        present = "neither" if wait.until is None else "both"
        yield INVALID_DEFINITION, "wait", f"expected durationMs or until, found {present}"
    yield from _not_within("wait.durationMs", wait.duration_ms, 0, LONGEST_MS)


def _of_targets(
    field: str, targets: Iterable[str], *, shared: bool = False
) -> Iterator[tuple[str, str, str]]:
    for target in targets:
        yield from _of_target(f"{field}.{target[:NAME_MAX]}", target, shared=shared)
    for target, outer in overlapping(targets):
        yield INVALID_TARGET, f"{field}.{target}", _overlap(target, outer)


def _of_target(field: str, target: str, *, shared: bool) -> Iterator[tuple[str, str, str]]:
    if problem := limit_problem(target):
        yield INVALID_TARGET, field, problem
    elif problem := path_problem(target, shared=shared):
        yield INVALID_EXPRESSION, field, problem


def _overlap(target: str, outer: str) -> str:
    return f"expected targets that are not within each other, found {target!r} within {outer!r}"


def _of_retries(node: Node, retries: NodeRetries) -> Iterator[tuple[str, str, str]]:
    if node.task is None:
        yield INVALID_DEFINITION, "retries", "expected them only on a node with a task"
    yield from _not_within("retries.limit", retries.limit, 0, RETRIES_MAX)
    yield from _not_among(INVALID_DEFINITION, "retries.backoff", retries.backoff, BACKOFFS)
    try:
        milliseconds_of("the delay", retries.delay)
    except ValueError as error:
        yield INVALID_DEFINITION, "retries.delay", str(error)


def _of_endpoints(definition: Definition) -> Iterator[Problem]:
    refs = {node.ref for node in definition.nodes}
    for index, transition in enumerate(definition.transitions):
        if transition.from_node_ref not in refs:
            path = f"transitions[{index}].fromNodeRef"
            yield _unknown_node(path, transition.from_node_ref)
        if transition.to_node_ref not in refs:
            yield _unknown_node(f"transitions[{index}].toNodeRef", transition.to_node_ref)


def _of_transition(transition: Transition) -> Iterator[tuple[str, str, str]]:
    yield from _not_among(INVALID_DEFINITION, "on", transition.on, (ON_SUCCESS, ON_ERROR))
    spawned, foreach = transition.spawn_count, transition.foreach
    if spawned is not None and foreach is not None:
        yield INVALID_DEFINITION, "spawnCount", "expected it or foreach, found both"
    yield from _not_within("spawnCount", spawned, 1, BRANCHES_MAX)
    if transition.sibling_group is not None and (
        problem := _name_problem(transition.sibling_group)
    ):
        yield INVALID_SIBLING_GROUP, "siblingGroup", problem
    if foreach is not None:
        if len(foreach.item_var) > NAME_MAX:
            yield from _named(**{"foreach.itemVar": foreach.item_var})
        if not may_be_item(foreach.item_var):
            message = f"expected a name that is not taken, found {foreach.item_var!r}"
            yield INVALID_EXPRESSION, "foreach.itemVar", message
        if foreach.on_empty is not None:
            yield from _not_among(
                INVALID_DEFINITION, "foreach.onEmpty", foreach.on_empty, (FAN_IN,)
            )
    loop = transition.loop_config
    if loop is not None:
        field = "loopConfig.maxIterations"
        yield from _not_within(field, loop.max_iterations, 1, _NUMBER_MAX)
    if transition.synchronization is not None:
        yield from _of_synchronization(transition.synchronization)
        if transition.forks:
            message = "expected a transition to fork or to synchronize, found both"
            yield INVALID_SIBLING_GROUP, "synchronization", message


def _of_synchronization(synchronization: Synchronization) -> Iterator[tuple[str, str, str]]:
    prefix = "synchronization"
    if synchronization.strategy not in ("any", "all") and quorum(synchronization.strategy) is None:
        expected = ", ".join(STRATEGIES)
        message = f"expected one of {expected}, found {synchronization.strategy!r}"
        yield INVALID_STRATEGY, f"{prefix}.strategy", message
    yield from _not_among(
        INVALID_STRATEGY, f"{prefix}.onTimeout", synchronization.on_timeout, TIMEOUTS
    )
    yield from _not_among(
        INVALID_STRATEGY,
        f"{prefix}.onBranchFailure",
        synchronization.on_branch_failure,
        BRANCH_FAILURES,
    )
    # 0 means no timeout.
    yield from _not_within(f"{prefix}.timeoutMs", synchronization.timeout_ms, 0, LONGEST_MS)
    if synchronization.merge is None:
        return
    merge = synchronization.merge
    yield from _not_among(INVALID_STRATEGY, f"{prefix}.merge.strategy", merge.strategy, MERGES)
    if (
        len(merge.source) > PATH_MAX
        or merge.source.count(".") > SEGMENTS_MAX
        or not _SOURCE.fullmatch(merge.source)
    ):
        message = f"expected _branch.output or a field of it, found {merge.source[:NAME_MAX]!r}"
        yield INVALID_EXPRESSION, f"{prefix}.merge.source", message
    yield from _of_target(f"{prefix}.merge.target", merge.target, shared=True)


def _of_groups(definition: Definition) -> Iterator[Problem]:
    forked = {way.sibling_group for way in definition.transitions if way.sibling_group}
    targets = Counter(
        group
        for group, _ in {
            (way.synchronization.sibling_group, way.to_node_ref)
            for way in definition.transitions
            if way.synchronization is not None
        }
    )
    for index, transition in enumerate(definition.transitions):
        joined = transition.synchronization
        if joined is not None and joined.sibling_group not in forked:
            yield Problem(
                INVALID_SIBLING_GROUP,
                f"transitions[{index}].synchronization.siblingGroup",
                f"expected a group that a transition forks, found {joined.sibling_group!r}",
            )
        if transition.foreach is not None and transition.foreach.on_empty == FAN_IN:
            group = transition.sibling_group
            joins = targets[group] if group else 0
            if joins != 1:
                yield Problem(
                    INVALID_SIBLING_GROUP,
                    f"transitions[{index}].foreach.onEmpty",
                    f"expected the group of the branches to have one join, found {joins}",
                )


def _of_joined_transitions(definition: Definition) -> Iterator[Problem]:
    """A node that joins its transitions must not be a join of branches, or the first of one."""
    joining = {node.ref for node in definition.nodes if node.join == JOIN_ALL}
    for index, transition in enumerate(definition.transitions):
        if transition.to_node_ref in joining:
            for field, is_set in (
                ("synchronization", transition.synchronization is not None),
                ("siblingGroup", transition.forks),
            ):
                if is_set:
                    yield Problem(
                        INVALID_STRATEGY,
                        f"transitions[{index}].{field}",
                        f"expected it only on transitions to nodes that do not join all, found it "
                        f"on one to {transition.to_node_ref!r}",
                    )


def _of_joins(definition: Definition) -> Iterator[Problem]:
    """Transitions to the same join must have the same settings, and merges that agree."""
    joins: dict[tuple[str, str], list[tuple[int, Synchronization]]] = {}
    together: dict[tuple[str, str, str, int], list[tuple[int, Synchronization]]] = {}
    for index, transition in enumerate(definition.transitions):
        synchronization = transition.synchronization
        if synchronization is None:
            continue
        key = (synchronization.sibling_group, transition.to_node_ref)
        joins.setdefault(key, []).append((index, synchronization))
        if transition.condition is None:
            taken = (*key, transition.from_node_ref, transition.priority)
            together.setdefault(taken, []).append((index, synchronization))
    for ways in joins.values():
        yield from _of_settings(ways)
        yield from _of_merges(ways, "strategy")
        yield from _of_targets_of_merges(ways)
    # A branch that takes two ways at once counts once, and has one value for a target.
    for ways in together.values():
        yield from _of_merges(ways, "source")


def _of_settings(ways: list[tuple[int, Synchronization]]) -> Iterator[Problem]:
    (first, expected), *others = ways
    where = f"transitions[{first}], which leads to the same join"
    for index, synchronization in others:
        for field, name in (
            ("strategy", "strategy"),
            ("timeout_ms", "timeoutMs"),
            ("on_timeout", "onTimeout"),
            ("on_branch_failure", "onBranchFailure"),
        ):
            mine, theirs = getattr(synchronization, field), getattr(expected, field)
            if mine != theirs:
                message = f"expected {theirs!r} as at {where}, found {mine!r}"
                path = f"transitions[{index}].synchronization.{name}"
                yield Problem(INVALID_STRATEGY, path, message)


def _of_merges(ways: list[tuple[int, Synchronization]], field: str) -> Iterator[Problem]:
    """Merges into one target must have the same value of a field."""
    first: dict[str, tuple[int, Merge]] = {}
    for index, synchronization in ways:
        merge = synchronization.merge
        if merge is None:
            continue
        other_index, other = first.setdefault(merge.target, (index, merge))
        mine, theirs = getattr(merge, field), getattr(other, field)
        if mine != theirs:
            message = (
                f"expected {theirs!r}, as the merge of transitions[{other_index}] into this "
                f"target has, found {mine!r}"
            )
            path = f"transitions[{index}].synchronization.merge.{field}"
            yield Problem(INVALID_STRATEGY, path, message)


def _of_targets_of_merges(ways: list[tuple[int, Synchronization]]) -> Iterator[Problem]:
    indexes = {
        synchronization.merge.target: index
        for index, synchronization in ways
        if synchronization.merge is not None
    }
    for target, outer in overlapping(indexes):
        path = f"transitions[{indexes[target]}].synchronization.merge.target"
        yield Problem(INVALID_TARGET, path, _overlap(target, outer))


def _unknown_node(path: str, ref: str) -> Problem:
    return Problem(INVALID_NODE_REF, path, f"expected the ref of a node, found {ref!r}")


def _not_among(
    code: str, field: str, value: str, known: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    if value not in known:
        yield code, field, f"expected one of {', '.join(known)}, found {value!r}"


def _not_within(
    field: str, value: int | None, least: int, most: int
) -> Iterator[tuple[str, str, str]]:
    if value is not None and not least <= value <= most:
        yield INVALID_DEFINITION, field, f"expected {least} to {most}, found {value}"
