"""Upper bounds of the cost of a CEL expression, from its syntax tree and the size of its data.

The bounds are far from tight. They decide where an expression is evaluated: immediately if the
bound is small, otherwise in a process with limits. The constants are measured (ADR 0057).

Sizes are bytes of JSON. The library itself stops an evaluation after 10,000 iterations of all its
macros together (`ITERATIONS_MAX`), and an expression may be 32 levels deep.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from headwater.processors.cel_ast import Call, Const, Ident, Items, Loop, Node, Select

#: Iterations of macros that the library allows in one evaluation.
ITERATIONS_MAX: Final = 10_000
#: Shortest item of a list in JSON, with its comma.
_ITEM_BYTES: Final = 2
#: Size of a number, a boolean or a time.
_SCALAR: Final = 24
_NODE_NS: Final = 100
_NODE_BYTES: Final = 32
#: Time to convert shared values for the library, per byte of their JSON.
_CONVERTED_NS: Final = 20
_INDEX_NS: Final = 500
#: Function with which an expression reads local values within CEL.
LOCAL: Final = "headwater_local"
#: Function that returns the sorted keys of a map. Expressions cannot spell its name.
KEYS: Final = "@sorted_keys"
#: Time to pass a local value to the library.
_LOCAL_NS: Final = 5_000
#: Time to evaluate a part of an expression separately.
_PART_NS: Final = 40_000
#: Time of an operator for a number and a number of another type, which is written in Python.
_MIXED_NS: Final = 3_000
#: Cost of converting a result to Python objects: 10 µs for an object with two fields.
_RESULT_NS: Final = 300
_RESULT_BYTES: Final = 40
#: `map` and `filter` copy their result list for every item.
_COPY_NS: Final = 25
_COPY_BYTES: Final = 20
#: Visits of the estimate itself: nested macros double them with every level.
_VISITS_MAX: Final = 20_000
#: A repetition within a pattern, and the number of states of a Unicode class.
_REPEATED: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_CLASS_STATES: Final = 300
_PATTERN_MAX: Final = 1_000


class Cost(NamedTuple):
    """An upper bound of an evaluation's time and memory."""

    ns: float
    memory: float


class _Value(NamedTuple):
    """Upper bounds of a value."""

    size: float
    #: Number of items of a list or map.
    items: float


_ONE: Final = _Value(_SCALAR, 1)


def cost_of(tree: Node, size: int, items: int, *, plain: bool) -> Cost:
    """Return an upper bound of the cost of an evaluation.

    Args:
        tree: The expression.
        size: Bytes of all its data as JSON.
        items: Upper bound of the items of any list or map in the data.
        plain: Whether the result is converted to Python objects; else it is a text or a boolean.
    """
    estimate = _Estimate(_Value(size, items))
    result = estimate.visit(tree, 1, {}).size
    estimate.spend(1, _CONVERTED_NS * size, _CONVERTED_NS * size)
    if plain:
        estimate.spend(1, _RESULT_NS * result, _RESULT_BYTES * result)
    return Cost(estimate.ns, estimate.memory)


def cost_of_parts(cost: Cost, size: int, times: float) -> Cost:
    """Return an upper bound of the cost of evaluating an expression in parts.

    Args:
        cost: Bound of the evaluation as a whole.
        size: Bytes of all its data as JSON.
        times: Evaluations of parts, which are as many conversions of local values.
    """
    return Cost(2 * cost.ns + times * (_PART_NS + _CONVERTED_NS * size), 2 * cost.memory)


class _Estimate:
    def __init__(self, data: _Value) -> None:
        self.data = data
        self.ns: float = 0
        self.memory: float = 0
        self._visits = 0

    def spend(self, times: float, ns: float, memory: float) -> None:
        self.ns += times * ns
        self.memory += times * memory

    def visit(  # noqa: PLR0911, one per kind
        self, node: Node, times: float, known: Mapping[str, _Value]
    ) -> _Value:
        """Add the cost of a node that is evaluated `times` times, and return its value's bounds."""
        self._visits += 1
        if self._visits > _VISITS_MAX:
            return self._unbounded()
        self.spend(times, _NODE_NS, _NODE_BYTES)
        match node:
            case Const():
                return _Value(node.size, 1)
            case Ident():
                return known.get(node.name, self.data)
            case Select(test_only=True):
                self.visit(node.operand, times, known)
                return _ONE
            case Select():
                return self.visit(node.operand, times, known)
            case Items():
                size = sum(self.visit(item, times, known).size + 4 for item in node.items)
                return _Value(size, size / _ITEM_BYTES)
            case Call():
                return self._call(node, times, known)
            case Loop():
                return self._loop(node, times, known)

    def _unbounded(self) -> _Value:
        self.ns = math.inf
        return _Value(math.inf, math.inf)

    def _call(self, call: Call, times: float, known: Mapping[str, _Value]) -> _Value:
        args = [self.visit(arg, times, known) for arg in call.args]
        if call.function == "_[_]":
            self.spend(times, _INDEX_NS, 0)
            return args[0]
        if call.function == LOCAL:
            self.spend(times, _LOCAL_NS + _CONVERTED_NS * self.data.size, _NODE_BYTES)
            return self.data
        function = _FUNCTIONS.get(call.function)
        if function is None:
            return self._unbounded()
        size, ns = function([arg.size for arg in args], call.args)
        self.spend(times, ns, 10 * size)
        return _Value(size, size / _ITEM_BYTES + 1)

    def _loop(self, loop: Loop, times: float, known: Mapping[str, _Value]) -> _Value:
        range_ = self.visit(loop.iter_range, times, known)
        if isinstance(loop.iter_range, Items):
            items: float = len(loop.iter_range.items)
        else:
            items = min(range_.items, range_.size / _ITEM_BYTES + 1, ITERATIONS_MAX)
        result = self.visit(loop.accu_init, times, known)
        if items:
            collects = isinstance(loop.accu_init, Items)
            known_here = {**known, loop.accu_var: _Value(0, 0) if collects else result}
            # The cost of an iteration grows at least linearly with its item. So all iterations
            # together cost at most as much as if one item were everything and the others nothing.
            largest = self._iteration(loop, times, {**known_here, loop.iter_var: range_})
            iterations = min(times * items, ITERATIONS_MAX)
            rest = self._iteration(loop, iterations, {**known_here, loop.iter_var: _ONE})
            if collects:
                size = largest + items * rest
                result = _Value(size, size / _ITEM_BYTES + 1)
                self.spend(times, _COPY_NS * items**2, _COPY_BYTES * items**2)
        return self.visit(loop.result, times, {**known, loop.accu_var: result})

    def _iteration(self, loop: Loop, times: float, known: Mapping[str, _Value]) -> float:
        self.visit(loop.condition, times, known)
        return self.visit(loop.step, times, known).size


#: Takes sizes of the arguments and the arguments; returns the size of the result and nanoseconds.
_Function: TypeAlias = Callable[[Sequence[float], Sequence[Node]], tuple[float, float]]


def _scalar(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return _SCALAR, 0.0


def _linear(by_ns: float, grows: float = 0) -> _Function:
    """Return the cost of a function that reads its arguments once; `grows` scales its result."""

    def cost(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
        size = sum(args)
        return (grows * size or _SCALAR), by_ns * size

    return cost


def _equal(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return _SCALAR, 60 * min(args)


def _in(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return _SCALAR, 60 * args[1] + args[0]


def _either(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return max(args[-2:]), 0.0


def _search(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    """Return the cost of comparing a text at all of its positions."""
    return _SCALAR, args[0] * (20 + args[1])


def _arithmetic(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return _SCALAR, _MIXED_NS


def _add(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return sum(args) or _SCALAR, _MIXED_NS + 15 * sum(args)


def _keys(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    return args[0], _MIXED_NS + 2 * _RESULT_NS * args[0]


def _split(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    # Every character may become an item with quotes and a comma.
    return 4 * args[0] + 4, args[0] * (200 + args[1])


def _replace(args: Sequence[float], nodes: Sequence[Node]) -> tuple[float, float]:
    text, old, new = args[:3]
    shortest = old if isinstance(nodes[1], Const) and old else 1
    result = text + (text / shortest + 1) * new
    return result, 100 * result + text * (100 + old)


def _join(args: Sequence[float], _: Sequence[Node]) -> tuple[float, float]:
    result = args[0] + (args[0] / _ITEM_BYTES + 1) * sum(args[1:])
    return result, 100 * result


def _format(args: Sequence[float], nodes: Sequence[Node]) -> tuple[float, float]:
    pattern = nodes[0]
    text = pattern.text if isinstance(pattern, Const) else None
    clauses = args[0] / 2 if text is None else text.count("%")
    # At most 1,000 digits after the decimal point, 309 before it.
    result = args[0] + 12 * args[1] + clauses * 1_400
    return result, 300 * result


def _matches(args: Sequence[float], nodes: Sequence[Node]) -> tuple[float, float]:
    pattern = nodes[1]
    text = pattern.text if isinstance(pattern, Const) else None
    if text is None or len(text) > _PATTERN_MAX:
        return _SCALAR, math.inf
    states = float(len(text))
    for low, high in _REPEATED.findall(text):
        states *= max(int(low), int(high or 0), 1)
    if re.search(r"\\[pP]|\(\?|\[\^", text):
        states *= _CLASS_STATES
    # It is compiled for every call.
    return _SCALAR, 20_000 + states * (500 + 5 * args[0])


def _timed(args: Sequence[float], nodes: Sequence[Node]) -> tuple[float, float]:
    # The library caches every time zone name that it is called with, known or not.
    unknown = len(nodes) > 1 and not isinstance(nodes[1], Const)
    return _SCALAR, math.inf if unknown else 5_000


_TIMES: Final = (
    "getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds "
    "getMinutes getMonth getSeconds"
)
_SCALARS: Final = "!_ _&&_ _||_ @not_strictly_false type hasValue optional.none"
_BITS: Final = "And Or Xor Not ShiftLeft ShiftRight"
_MATH: Final = "ceil floor round trunc abs sign sqrt isNaN isInf isFinite"
#: Functions that return one of their arguments, or a part of it.
_OPTIONAL: Final = "_?._ _[?_] or orValue value optional.of optional.ofNonZeroValue"
#: All functions available to graphs and rules; others count as unbounded.
_FUNCTIONS: Final[Mapping[str, _Function]] = {
    **dict.fromkeys(_SCALARS.split(), _scalar),
    **dict.fromkeys([f"math.bit{name}" for name in _BITS.split()], _scalar),
    **dict.fromkeys([f"math.{name}" for name in _MATH.split()], _arithmetic),
    **dict.fromkeys(["-_", "_-_", "_*_", "_/_", "_%_"], _arithmetic),
    **dict.fromkeys(["math.@max", "math.@min"], _linear(20)),
    **dict.fromkeys(_OPTIONAL.split(), _linear(1, grows=1)),
    KEYS: _keys,
    **dict.fromkeys(["_<_", "_<=_", "_>_", "_>=_", "startsWith", "endsWith", "size"], _linear(5)),
    **dict.fromkeys(["int", "uint", "double", "bool", "timestamp", "duration"], _linear(20)),
    **dict.fromkeys(["string", "bytes"], _linear(20, grows=2)),
    **dict.fromkeys(
        ["lowerAscii", "upperAscii", "reverse", "trim", "charAt"], _linear(50, grows=1)
    ),
    **dict.fromkeys(["contains", "indexOf", "lastIndexOf"], _search),
    **dict.fromkeys(_TIMES.split(), _timed),
    "_==_": _equal,
    "_!=_": _equal,
    "@in": _in,
    "_?_:_": _either,
    "_+_": _add,
    "dyn": _linear(0, grows=1),
    "substring": _linear(50, grows=1),
    "strings.quote": _linear(100, grows=6),
    "split": _split,
    "replace": _replace,
    "join": _join,
    "format": _format,
    "matches": _matches,
}
