"""Order and missing parts: what Headwater adds to the evaluation of CEL, on the syntax tree.

`rewritten` changes a tree so that macros iterate over objects in the order of their keys, since
the library's order differs from one evaluation to the next, and so that `has(a.b.c)` is false if
`a.b` is missing.

`PartEvaluator` evaluates an expression again in which a field is missing: an object or a list keeps
its other parts. The library has one result for a whole expression, so lists, objects, macros and
conditionals are evaluated here and everything within them by the library, piece by piece.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.processors.cel_ast import (
    Call,
    Const,
    Ident,
    Items,
    Loop,
    Node,
    Select,
    bind,
    children,
    is_bind,
    text_const,
    with_children,
)
from headwater.processors.cel_cost import ITERATIONS_MAX, KEYS, LOCAL
from headwater.processors.evaluations import EvaluationProblem

_RANGE: Final = "@range"
#: Names of values that replace parts; expressions cannot spell them.
_PART: Final = "@part"
_CONDITIONAL: Final = "_?_:_"
_LAZY: Final = frozenset(["_&&_", "_||_", "@not_strictly_false"])

#: Evaluates a node with the values of local names.
Leaf: TypeAlias = Callable[[Node, Mapping[str, Any]], Any | EvaluationProblem]


def rewritten(tree: Node) -> Node:
    """Return a tree with ordered iterations and tolerant `has`."""
    tree = with_children(tree, [rewritten(node) for node in children(tree)])
    match tree:
        case Loop() if not is_bind(tree):
            return tree._replace(iter_range=_ordered(tree.iter_range))
        case Select(test_only=True):
            return tree._replace(operand=_optional(tree.operand))
        case _:
            return tree


def _ordered(iter_range: Node) -> Node:
    """Return the sorted keys of a range if it is a map, else the range."""
    if _is_list(iter_range):
        return iter_range
    value = Ident(_RANGE)
    is_map = Call("_==_", (Call("type", (value,)), Ident("map")))
    return bind(_RANGE, iter_range, Call(_CONDITIONAL, (is_map, Call(KEYS, (value,)), value)))


def _unordered(iter_range: Node) -> Node:
    """Undo `_ordered`."""
    if isinstance(iter_range, Loop) and iter_range.accu_var == _RANGE:
        return iter_range.accu_init
    return iter_range


def _optional(node: Node) -> Node:
    """Return a path as an optional value, which is empty if a part of the path is missing."""
    match node:
        case Select(test_only=False):
            return Call("_?._", (_optional(node.operand), text_const(node.field)))
        case Call(function="_[_]"):
            return Call("_[?_]", (_optional(node.args[0]), node.args[1]))
        case _:
            return node


def sorted_keys(values: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a map in their order; texts by their code points."""
    return sorted(values, key=lambda key: (type(key).__name__, key))


def ranges_of(tree: Node, names: Collection[str]) -> set[tuple[str, ...]] | None:
    """Return the paths of what macros iterate over, without lists that the expression constructs.

    Args:
        tree: The expression, not rewritten.
        names: Names with values that are known before the evaluation.

    Returns:
        Paths of fields that begin with one of the names; None if there are other ranges.
    """
    paths: set[tuple[str, ...]] = set()
    for node, bound in _nodes(tree, frozenset()):
        if not isinstance(node, Loop) or is_bind(node) or _is_list(node.iter_range):
            continue
        path = _path(node.iter_range)
        if not path or path[0] not in names or path[0] in bound:
            return None
        paths.add(path)
    return paths


def _nodes(node: Node, bound: frozenset[str]) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield all nodes with the variables of the macros around them."""
    yield node, bound
    inner = bound | {node.iter_var} if isinstance(node, Loop) else bound
    for child in children(node):
        outside = isinstance(node, Loop) and child is node.iter_range
        yield from _nodes(child, bound if outside else inner)


def _path(node: Node) -> tuple[str, ...]:
    """Return the names of a path of fields; empty if a node is none."""
    if isinstance(node, Ident):
        return (node.name,)
    if isinstance(node, Select) and not node.test_only:
        outer = _path(node.operand)
        return (*outer, node.field) if outer else ()
    return ()


def _is_list(node: Node) -> bool:
    """Return whether a node constructs a list: a literal, `map` or `filter`."""
    if isinstance(node, Loop):
        return isinstance(node.accu_init, Items) and not is_bind(node)
    return isinstance(node, Items) and not node.is_map


# -- missing parts


def has_parts(node: Node) -> bool:
    """Return whether a node contains a list or an object that it constructs."""
    if isinstance(node, Items):
        return bool(node.items) and not node.message
    return _is_list(node) or any(map(has_parts, children(node)))


def evaluations_of(node: Node, items: float, times: float = 1) -> float:
    """Return an upper bound of the library's evaluations by `PartEvaluator`.

    Args:
        node: The expression.
        items: Upper bound of the items of any list in the data.
        times: How often the node is evaluated.
    """
    if not has_parts(node):
        return times
    own = times
    for child in children(node):
        inside = isinstance(node, Loop) and child is not node.iter_range
        own += evaluations_of(child, items, times * min(items, ITERATIONS_MAX) if inside else times)
    return own


def without_local(tree: Node) -> Node:
    """Return an expression without the bindings of its local names around it."""
    while isinstance(tree, Loop) and tree.accu_init == local_value(tree.accu_var):
        tree = tree.result
    return tree


def local_value(name: str) -> Call:
    """Return the call that reads the value of a local name."""
    return Call(LOCAL, (text_const(name),))


def with_local(node: Node, names: Iterable[str]) -> Node:
    """Return an expression in which these local names are bound."""
    for name in names:
        node = bind(name, local_value(name), node)
    return node


def names_in(node: Node) -> set[str]:
    """Return the names of all variables in a node."""
    own = {node.name} if isinstance(node, Ident) else set[str]()
    return own.union(*map(names_in, children(node)))


class _Macro(NamedTuple):
    """A macro over a list or an object.

    Attributes:
        kind: `map` (which includes `filter`), `all`, `exists` or `exists_one`.
        condition: What items have to meet; None if there is no condition.
        value: Result of an item, for `map`.
    """

    kind: str
    condition: Node | None
    value: Node | None = None


def _macro(loop: Loop) -> _Macro | None:
    accu = Ident(loop.accu_var)
    match loop.accu_init, loop.step:
        case Const(value=True), Call("_&&_", (left, right)) if left == accu:
            return _Macro("all", right)
        case Const(value=False), Call("_||_", (left, right)) if left == accu:
            return _Macro("exists", right)
        case Const(), Call("_?_:_", (condition, Call("_+_"), right)) if right == accu:
            return _Macro("exists_one", condition)
        case Items(), Call("_+_", (left, Items((value,)))) if left == accu:
            return _Macro("map", None, value)
        case (
            Items(),
            Call("_?_:_", (condition, Call("_+_", (left, Items((value,)))), right)),
        ) if left == right == accu:
            return _Macro("map", condition, value)
        case _:
            return None


class _Problem(Exception):
    def __init__(self, problem: EvaluationProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class PartEvaluator:
    """One evaluation of an expression in which a field is missing."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._iterations = 0

    def evaluate(self, tree: Node, local: Mapping[str, Any]) -> Any | EvaluationProblem:  # noqa: ANN401
        """Return the value of an expression, or why it has none."""
        try:
            return self._value(tree, local)
        except _Problem as error:
            return error.problem

    def _value(self, node: Node, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the value of a node.

        Raises:
            _Problem: It has none.
        """
        if not has_parts(node):
            return self._of_library(node, local)
        match node:
            case Items(is_map=True):
                return self._object(node, local)
            case Items():
                return self._list(node, local)
            case Call(function="_?_:_"):
                condition, left, right = node.args
                decided = self._value(condition, local)
                if isinstance(decided, bool):
                    return self._value(left if decided else right, local)
            case Loop() if (macro := _macro(node)) is not None:
                values = self._value(_unordered(node.iter_range), local)
                if isinstance(values, list | dict):
                    return self._loop(node.iter_var, macro, values, local)
            case _:
                pass
        return self._with_parts(node, local)

    def _of_library(self, node: Node, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        path = _path(node)
        if path and path[0] in local:
            value = _field(path, local)
            if value is not _UNKNOWN:
                return value
        value = self._leaf(node, local)
        if isinstance(value, EvaluationProblem):
            raise _Problem(value)
        return value

    def _present(self, node: Node, local: Mapping[str, Any], *, whole: bool = False) -> list[Any]:
        """Return a list of the value of a part; an empty list if the part is missing."""
        try:
            return [self._of_library(node, local) if whole else self._value(node, local)]
        except _Problem as error:
            if error.problem.missing:
                return []
            raise

    def _list(self, node: Items, local: Mapping[str, Any]) -> list[Any]:
        values: list[Any] = []
        for index, item in enumerate(node.items):
            if index in node.optional:
                for part in self._present(Items((item,), optional=(0,)), local, whole=True):
                    values += part
            else:
                values += self._present(item, local) or [None]
        return values

    def _object(self, node: Items, local: Mapping[str, Any]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for index, (key, item) in enumerate(zip(node.items[::2], node.items[1::2], strict=True)):
            if index in node.optional:
                entry = Items((key, item), is_map=True, optional=(0,))
                for part in self._present(entry, local, whole=True):
                    values |= part
                continue
            name = self._value(key, local)
            for part in self._present(item, local):
                if name in values:
                    raise _Problem(
                        EvaluationProblem(f"expected different keys, found {name!r:.80}")
                    )
                values[name] = part
        return values

    def _loop(
        self,
        name: str,
        macro: _Macro,
        values: list[Any] | dict[Any, Any],
        local: Mapping[str, Any],
    ) -> Any:  # noqa: ANN401
        results: list[Any] = []
        problem: _Problem | None = None
        matches = 0
        for item in values if isinstance(values, list) else sorted_keys(values):
            self._iterations += 1
            if self._iterations > ITERATIONS_MAX:
                raise _Problem(
                    EvaluationProblem(f"expected at most {ITERATIONS_MAX} iterations, found more")
                )
            within = {**local, name: item}
            try:
                decided = macro.condition is None or self._condition(macro.condition, within)
            except _Problem as error:
                if macro.kind not in ("all", "exists"):
                    raise
                problem = problem or error
                continue
            if macro.kind == "map" and decided:
                results += self._present(_node(macro.value), within) or [None]
            elif (macro.kind == "exists" and decided) or (macro.kind == "all" and not decided):
                return decided
            matches += decided
        if problem is not None:
            raise problem
        return {"map": results, "exists": False, "all": True}.get(macro.kind, matches == 1)

    def _condition(self, node: Node, local: Mapping[str, Any]) -> bool:
        value = self._value(node, local)
        if isinstance(value, bool):
            return value
        raise _Problem(EvaluationProblem(f"expected true or false, found {value!r:.80}"))

    def _with_parts(self, node: Node, local: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Evaluate a function or an operator over parts that are evaluated before."""
        parts: dict[str, Any] = {}
        replaced = list(children(node))
        for index, child in enumerate(replaced):
            evaluated = not isinstance(node, Loop) or child is node.iter_range
            if not (evaluated and has_parts(child)):
                continue
            try:
                value = self._value(child, local)
            except _Problem as error:
                # The library decides whether it matters: `true || x` is true.
                if isinstance(node, Call) and node.function in _LAZY:
                    continue
                raise error from None
            name = f"{_PART}{index}"
            parts[name], replaced[index] = value, Ident(name)
        return self._of_library(with_children(node, replaced), {**local, **parts})


_UNKNOWN: Final = object()


def _field(path: tuple[str, ...], local: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a field of a local value, or _UNKNOWN if the library has to read it.

    Raises:
        _Problem: It is missing.
    """
    value: Any = local
    for name in path:
        if not isinstance(value, dict):
            return _UNKNOWN
        if name not in value:
            raise _Problem(EvaluationProblem(f"no field {name!r:.80}", missing=True))
        value = value[name]
    return value


def _node(node: Node | None) -> Node:
    assert node is not None  # noqa: S101, `map` has a value
    return node
