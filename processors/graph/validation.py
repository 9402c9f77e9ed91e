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
    MISSING_OWNER,
    MULTIPLE_OWNERS,
    Definition,
    Node,
    NodeRetries,
    Problem,
    Synchronization,
    Transition,
)
from headwater.processors.graph.nesting import problems_of_merges
from headwater.processors.runs.durations import LONGEST_MS, milliseconds_of
from headwater.processors.runs.limits import (
    RETRIES_MAX,
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
FAN_IN: Final = "fan_in"

#: Maximum of counts without another limit: a signed 64-bit number.
_NUMBER_MAX: Final = 2**63 - 1
_M_OF_N: Final = re.compile(r"m_of_n:([1-9]\d{0,8})")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SOURCE: Final = re.compile(r"_branch\.output(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
#: Maximum characters of the names of a graph's parts. They are stored in keys, records and rows;
#: in UTF-8 one has at most 1,024 bytes, of the 2,704 that a Postgres index entry allows.
NAME_MAX: Final = 256


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
    for target in definition.output_mapping:
        target_problem = path_problem(target, shared=False)
        if target_problem is not None:
            yield Problem(INVALID_EXPRESSION, f"outputMapping.{target[:NAME_MAX]}", target_problem)
    if not any(node.ref == definition.initial_node_ref for node in definition.nodes):
        yield _unknown_node("initialNodeRef", definition.initial_node_ref)


def _repeated(code: str, path: str, refs: list[str]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, ref in enumerate(refs):
        if ref in first:
            before = f"{path}[{first[ref]}]"
            yield Problem(code, f"{path}[{index}].ref", f"{ref!r} is the ref of {before} already")
        elif problem := _name_problem(ref):
            yield Problem(INVALID_DEFINITION, f"{path}[{index}].ref", problem)
        first.setdefault(ref, index)


def _name_problem(name: str) -> str | None:
    """Return what is wrong with a name that an author gives to a part of a graph, if anything."""
    if not name:
        return "expected a name, found ''"
    if len(name) > NAME_MAX:
        shown = f"{name[:80]}…"
        return f"expected a name of at most {NAME_MAX} characters, found {len(name)} in {shown!r}"
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
    if node.task is None and node.subworkflow is None:
        yield MISSING_OWNER, "", f"expected {node.ref!r} to name a task or a subworkflow"
    if node.task is not None and node.subworkflow is not None:
        yield (
            MULTIPLE_OWNERS,
            "",
            f"expected {node.ref!r} to name a task or a subworkflow, found both",
        )
    if node.external and node.task is None:
        yield INVALID_DEFINITION, "external", "expected it only on a node with a task"
    if node.external and node.task is not None:
        # Workers request jobs by this name.
        task_problem = name_problem("the task of a job", node.task, WORKFLOW_NAME_MAX)
        if task_problem:
            yield INVALID_DEFINITION, "task", task_problem
    yield from _named(task=node.task, subworkflow=node.subworkflow)
    yield from _not_among(INVALID_STRATEGY, "join", node.join, NODE_JOINS)
    for mapping, targets, shared in (
        ("inputMapping", node.input_mapping, False),
        ("outputMapping", node.output_mapping, True),
    ):
        for target in targets:
            problem = path_problem(target, shared=shared)
            if problem is not None:
                yield INVALID_EXPRESSION, f"{mapping}.{target[:NAME_MAX]}", problem
    yield from _not_within("timeoutMs", node.timeout_ms, 1, LONGEST_MS)
    if node.retries is not None:
        yield from _of_retries(node, node.retries)


def _of_retries(node: Node, retries: NodeRetries) -> Iterator[tuple[str, str, str]]:
    if node.subworkflow is not None:
        yield (
            INVALID_DEFINITION,
            "retries",
            "expected them on a node with a task; a subworkflow has its own",
        )
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
    problem = path_problem(merge.target, shared=True)
    if problem is not None:
        yield INVALID_EXPRESSION, f"{prefix}.merge.target", problem


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
    """Transitions to the same join must have the same settings."""
    first: dict[tuple[str, str], tuple[int, Synchronization]] = {}
    for index, transition in enumerate(definition.transitions):
        synchronization = transition.synchronization
        if synchronization is None:
            continue
        key = (synchronization.sibling_group, transition.to_node_ref)
        other_index, other = first.setdefault(key, (index, synchronization))
        path = f"transitions[{index}].synchronization"
        for field, name in (
            ("strategy", "strategy"),
            ("timeout_ms", "timeoutMs"),
            ("on_timeout", "onTimeout"),
            ("on_branch_failure", "onBranchFailure"),
        ):
            mine, theirs = getattr(synchronization, field), getattr(other, field)
            if mine != theirs:
                where = f"transitions[{other_index}], which leads to the same join"
                message = f"expected {theirs!r} as at {where}, found {mine!r}"
                yield Problem(INVALID_STRATEGY, f"{path}.{name}", message)
        if (
            synchronization.merge
            and other.merge
            and synchronization.merge.target == other.merge.target
        ):
            yield from _different(
                f"{path}.merge.strategy", synchronization.merge.strategy, other.merge.strategy
            )


def _different(path: str, mine: str, theirs: str) -> Iterator[Problem]:
    if mine != theirs:
        message = f"expected {theirs!r}, as another merge into this target has, found {mine!r}"
        yield Problem(INVALID_STRATEGY, path, message)


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
