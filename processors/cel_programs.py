"""CEL expressions compiled by the library, in the environments that it offers to Headwater.

Most expressions need only the library's own environment. The full one has Headwater's operators for
numbers of different types, its functions, and its changes of the syntax tree (`cel_parts`). Both
have the same result for whatever the library's own gives a result, except for the order in which it
goes over objects. So the full one is used where the other fails, and costs others nothing.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from headwater.processors.cel_ast import Node, read_tree, write_tree
from headwater.processors.cel_cost import LOCAL, Cost, cost_of
from headwater.processors.cel_parts import names_in, ranges_of, rewritten, with_local
from headwater.processors.cel_sources import clear_message, error_at_position, with_quoted_fields
from headwater.processors.cel_values import CelValue
from headwater.processors.evaluations import EvaluationProblem

if TYPE_CHECKING:
    from cel_expr_python import cel

#: How the library reports that a field or an element does not exist.
_MISSING: Final = re.compile(r"NOT_FOUND: Key not found in map|UNKNOWN: Index error: index=")
#: What the full environment may evaluate where the library's own fails.
_EXTENDED: Final = re.compile(r"[-+*/%]|\bhas\s*\(|\bmath\s*\.")
_MACROS: Final = re.compile(r"\b(?:all|exists|exists_one|map|filter)\s*\(")
_REWRITTEN: Final = re.compile(rf"\bhas\s*\(|{_MACROS.pattern}")
#: Beginning of the name of the type of `input.?a`.
_OPTIONAL: Final = "optional_type"
#: Message of an evaluation that exceeds the memory of the process or its limit.
NO_MEMORY: Final = "expected an evaluation in the memory that there is for it, it needs more"


class ResultKind(Enum):
    """Kind of an expression's result."""

    TEXT = "a text"
    CONDITION = "true or false"
    JSON = "a JSON value"
    #: The value itself, where JSON is its text.
    VALUE = "a value of JSON"

    @property
    def plain(self) -> bool:
        """Whether it may be any JSON value."""
        return self in (ResultKind.JSON, ResultKind.VALUE)


class ExpressionInvalid(ValueError):
    """An expression that cannot be compiled; the message has the position and the reason."""


class _LocalValues:
    """Values of an expression's local names, and the name that was read last."""

    def __init__(self, values: Mapping[str, CelValue]) -> None:
        self.values = values
        self.last_read = ""


_local_values: ContextVar[_LocalValues] = ContextVar("local_values")


def _local_value(name: str) -> object:
    current = _local_values.get()
    if name not in current.values:
        raise LookupError(f"undeclared variable {name}: it is known within its fork alone")
    current.last_read = name
    return current.values[name].value


def _with_name(message: str, local: _LocalValues) -> str:
    """Return a message of the library with the name of a value instead of the function's name."""
    return clear_message(message).replace(f"Python function '{_local_value}'", local.last_read)


class Names:
    """Names of shared values that expressions may use, and environments in which they compile."""

    def __init__(self, *shared: str) -> None:
        self.shared = frozenset(shared)

    @cached_property
    def plain(self) -> "cel.Env":
        """The library's own environment."""
        from headwater.processors import cel_functions  # noqa: PLC0415 (loads the library)

        return cel_functions.plain_environment(self.shared, _local_value)

    @cached_property
    def full(self) -> "cel.Env":
        """The environment with Headwater's functions and operators, too."""
        from headwater.processors import cel_functions  # noqa: PLC0415 (loads the library)

        return cel_functions.full_environment(self.shared, _local_value)


class Program:
    """A compiled expression."""

    def __init__(self, compiled: "cel.Expression", tree: Node | None = None) -> None:
        from headwater.processors import cel_functions  # noqa: PLC0415 (loads the library)

        self._compiled = compiled
        self._error_type = cel_functions.ERROR
        #: By the magnitude of the size and of the number of items of the data.
        self.costs: dict[tuple[int, int], Cost] = {}
        if tree is not None:
            self.tree = tree

    @cached_property
    def tree(self) -> Node:
        """The checked syntax tree."""
        return read_tree(self._compiled.serialize())

    def cost(self, size: int, items: int, *, plain: bool) -> Cost:
        """Compute the bound of an evaluation for all data of about the same size."""
        key = (size.bit_length(), items.bit_length())
        cost = self.costs[key] = cost_of(self.tree, 1 << key[0], 1 << key[1], plain=plain)
        return cost

    def evaluate(
        self,
        activation: Any,  # noqa: ANN401, of the library
        values: Mapping[str, CelValue],
    ) -> Any | EvaluationProblem:  # noqa: ANN401
        """Return the library's result.

        Args:
            activation: The shared values.
            values: The values of local names.
        """
        local = _LocalValues(values)
        token = _local_values.set(local)
        try:
            result = self._compiled.eval(activation)
            if result.type() == self._error_type:
                message = _with_name(str(result.value()), local)
                return EvaluationProblem(message, missing=_MISSING.match(message) is not None)
            return result.plain_value()
        # The library has no error classes of its own.
        except (RuntimeError, ValueError, TypeError, OverflowError, SystemError) as error:
            return EvaluationProblem(_with_name(str(error), local))
        except MemoryError:
            return EvaluationProblem(NO_MEMORY)
        finally:
            _local_values.reset(token)


class Programs:
    """An expression in both environments, and its parts."""

    def __init__(
        self, source: str, result_kind: ResultKind, names: Names, local: Sequence[str]
    ) -> None:
        """Compile an expression.

        Args:
            source: The expression.
            result_kind: Kind of the result.
            names: Names of shared values.
            local: The local names that it may use.

        Raises:
            ExpressionInvalid: The expression cannot be compiled.
        """
        self._source = source
        self._kind = result_kind
        self._names = names
        self._local = local
        self._parts: dict[tuple[Node, tuple[str, ...]], tuple[Program, set[str]]] = {}
        #: In the library's own environment; None if it does not compile there.
        self.plain: Program | None = None
        try:
            self.plain = Program(self._compiled(names.plain))
        except ExpressionInvalid:
            self.full  # noqa: B018, raises if it does not compile there, either
        #: Whether it has macros, and is compiled in the library's own environment.
        self.iterates = self.plain is not None and _MACROS.search(source) is not None

    @cached_property
    def extended(self) -> bool:
        """Whether the full environment may have a result where the library's own has none."""
        return _EXTENDED.search(self._source) is not None

    @cached_property
    def full(self) -> Program:
        """The expression in the full environment."""
        compiled = self._compiled(self._names.full)
        if not _REWRITTEN.search(self._source):
            return Program(compiled)
        tree = rewritten(read_tree(compiled.serialize()))
        return Program(self._names.full.deserialize(write_tree(tree)), tree)

    def part(self, node: Node, names: tuple[str, ...]) -> tuple[Program, set[str]]:
        """Return a part of the expression, compiled once, and the local names that it uses.

        Args:
            node: A node of the tree in the full environment.
            names: Names that are bound around it.
        """
        part = self._parts.get((node, names))
        if part is None:
            used = names_in(node).intersection([*names, *self._local])
            tree = with_local(node, sorted(used))
            program = Program(self._names.full.deserialize(write_tree(tree)), tree)
            part = self._parts[node, names] = program, used
        return part

    def goes_over_objects(self, local: Mapping[str, Any], shared: Mapping[str, Any]) -> bool:
        """Return whether a macro may iterate over an object.

        Args:
            local: The values of local names.
            shared: The values of shared names.
        """
        if self._ranges is None:
            return True
        for path in self._ranges:  # noqa: SIM110, in every evaluation of a macro
            if _is_object(path, local, shared):
                return True
        return False

    @cached_property
    def _ranges(self) -> Collection[tuple[str, ...]] | None:
        if self.plain is None:
            return ()
        return ranges_of(self.plain.tree, self._names.shared.union(self._local))

    def _compiled(self, env: "cel.Env") -> "cel.Expression":
        from headwater.processors import cel_functions  # noqa: PLC0415 (loads the library)

        compiled = self._compiled_text(env, self._source)
        actual = compiled.return_type()
        if (
            self._kind.plain
            and env is not self._names.plain
            and actual.name().startswith(_OPTIONAL)
        ):
            # An empty optional value is null, as a missing field is.
            return self._compiled_text(env, self._source, "(", "\n).orValue(dyn(null))")
        types = {
            ResultKind.TEXT: cel_functions.TEXT,
            ResultKind.CONDITION: cel_functions.CONDITION,
        }
        if actual not in (types.get(self._kind, actual), cel_functions.ANY):
            raise ExpressionInvalid(
                f"expected an expression that gives {self._kind.value}, "
                f"found {actual.name().lower()}"
            )
        return compiled

    def _compiled_text(
        self, env: "cel.Env", source: str, before: str = "", after: str = ""
    ) -> "cel.Expression":
        bindings = [f'cel.bind({name},{LOCAL}("{name}"),' for name in self._local]
        prefix = "".join(bindings) + before
        # The closing parentheses are on a line of their own if the expression may end in a comment.
        line = "\n" if bindings and "//" in source else ""
        try:
            return env.compile(f"{prefix}{source}{after}{line}{')' * len(bindings)}")
        except RuntimeError as error:
            problem = error_at_position(str(error), len(prefix))
        quoted = with_quoted_fields(source)
        if quoted == source:
            raise ExpressionInvalid(problem)
        return self._compiled_text(env, quoted, before, after)


def _is_object(path: tuple[str, ...], local: Mapping[str, Any], shared: Mapping[str, Any]) -> bool:
    root = path[0]
    value: Any = local[root] if root in local else shared.get(root)
    for field in path[1:]:
        if not isinstance(value, dict):
            return False
        value = value.get(field)
    return isinstance(value, dict)
