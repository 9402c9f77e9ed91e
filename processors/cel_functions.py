"""Functions and operators of CEL that are added to the library's.

In JSON a number is a number, and whether one is written `2` or `2.0` is up to its sender. CEL
distinguishes int, uint and double, and refuses `2 * 1.5`. So the operators get variants for
arguments of different types: an int with a double gives a double, an int with a uint an integer.

The library compares numbers of different types already when it evaluates, but not when it checks
types. So these declarations replace its own, and are only for the check.

Only this module imports the library, and only the compilation of an expression imports this module:
programs without expressions need no library.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from typing import Any, Final, TypeAlias

try:
    from cel_expr_python import cel
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "expected the package cel-expr-python, which graphs and rules need for their expressions, "
        "found none; install it with: pip install 'headwater[graphs]'",
        name=error.name,
    ) from None
from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings

from headwater.processors.cel_cost import KEYS, LOCAL
from headwater.processors.cel_parts import sorted_keys

#: Range of the integers of CEL: int and uint together.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1

#: Types of results.
TEXT: Final = cel.Type.STRING
CONDITION: Final = cel.Type.BOOL
ANY: Final = cel.Type.DYN
ERROR: Final = cel.Type.ERROR

_TYPES: Final = {"int": cel.Type.INT, "uint": cel.Type.UINT, "double": cel.Type.DOUBLE}
_MIXED: Final = tuple(permutations(_TYPES, 2))

_Number: TypeAlias = int | float
_Operation: TypeAlias = Callable[[Any, Any], _Number]


def _whole(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise ValueError("integer overflow")


def _quotient(left: int, right: int) -> int:
    """Divide integers towards zero, as CEL does."""
    if right == 0:
        raise ValueError("divide by zero")
    quotient = abs(left) // abs(right)
    return _whole(quotient if (left < 0) == (right < 0) else -quotient)


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise ValueError("modulus by zero")
    return left - right * _quotient(left, right)


def _double_quotient(left: float, right: float) -> float:
    """Divide as IEEE 754 does."""
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _double_remainder(left: float, right: float) -> float:
    for value in (left, right):
        if not float(value).is_integer():
            raise ValueError(f"expected whole numbers for %, found {value}")
    if right == 0:
        raise ValueError("modulus by zero")
    return math.fmod(left, right)


#: By operator: of integers, and of numbers of which one is a double.
_OPERATIONS: Final[Mapping[str, tuple[_Operation, _Operation]]] = {
    "_+_": (lambda left, right: _whole(left + right), lambda left, right: left + right),
    "_-_": (lambda left, right: _whole(left - right), lambda left, right: left - right),
    "_*_": (lambda left, right: _whole(left * right), lambda left, right: left * right),
    "_/_": (_quotient, _double_quotient),
    "_%_": (_remainder, _double_remainder),
}


def _overload(
    name: str, parameters: Iterable[str], result: cel.Type, function: Callable[..., Any]
) -> cel.Overload:
    names = list(parameters)
    types = [_TYPES[parameter] for parameter in names]
    key = "_".join(["headwater", name, *names])
    return cel.Overload(id=key, return_type=result, parameters=types, impl=function)


def _arithmetic() -> Iterable[cel.FunctionDecl]:
    for operator, (of_integers, of_doubles) in _OPERATIONS.items():
        overloads = [
            _overload(operator, pair, cel.Type.DOUBLE, of_doubles)
            if "double" in pair
            # An integer is an int if it can be one, else a uint.
            else _overload(operator, pair, cel.Type.DYN, of_integers)
            for pair in _MIXED
        ]
        if operator == "_%_":
            overloads.append(_overload(operator, ("double", "double"), cel.Type.DOUBLE, of_doubles))
        yield cel.FunctionDecl(operator, overloads)
    negation = _overload("-_", ["uint"], cel.Type.DYN, lambda value: _whole(-value))
    yield cel.FunctionDecl("-_", [negation])


def _rounding() -> Iterable[cel.FunctionDecl]:
    """Round integers: the library rounds doubles only, and in JSON 3.0 may be written as 3."""
    for name in ("math.ceil", "math.floor", "math.round", "math.trunc"):
        overloads = [
            _overload(name, [kind], _TYPES[kind], lambda value: value) for kind in ("int", "uint")
        ]
        yield cel.FunctionDecl(name, overloads)


def _keys() -> cel.FunctionDecl:
    keys = cel.Type.List(cel.Type.DYN)
    overload = cel.Overload(id=KEYS, return_type=keys, parameters=[cel.Type.MAP], impl=sorted_keys)
    return cel.FunctionDecl(KEYS, [overload])


def _local_function(read: Callable[[str], object]) -> cel.FunctionDecl:
    """Return the function of expressions that reads the value of a local name."""
    overload = cel.Overload(
        id=LOCAL, return_type=cel.Type.DYN, parameters=[cel.Type.STRING], impl=read
    )
    return cel.FunctionDecl(LOCAL, [overload])


# -- the check of types

_Declared: TypeAlias = dict[str, Any]
_ORDERED: Final = ("bool", *_TYPES, "string", "bytes", "timestamp", "duration")


def _type(name: str, *params: _Declared) -> _Declared:
    declared: _Declared = {"type_name": name}
    if name in ("A", "B"):
        declared["is_type_param"] = True
    return declared | ({"params": list(params)} if params else {})


def _declared(name: str, overloads: Iterable[tuple[list[_Declared], _Declared]]) -> _Declared:
    return {
        "name": name,
        "overloads": [
            {"id": f"headwater_{name}_{number}", "args": args, "return": result}
            for number, (args, result) in enumerate(overloads)
        ],
    }


def _comparisons() -> Iterable[_Declared]:
    true_or_false, some, other = _type("bool"), _type("A"), _type("B")
    mixed = [([_type(left), _type(right)], true_or_false) for left, right in _MIXED]
    same = [([_type(name), _type(name)], true_or_false) for name in _ORDERED]
    for operator in ("_<_", "_<=_", "_>_", "_>=_"):
        yield _declared(operator, [*same, *mixed])
    for operator in ("_==_", "_!=_"):
        yield _declared(operator, [([some, some], true_or_false), *mixed])
    lists = [([_type(left), _type("list", _type(right))], true_or_false) for left, right in _MIXED]
    within: list[tuple[list[_Declared], _Declared]] = [
        ([some, _type("list", some)], true_or_false),
        ([some, _type("map", some, other)], true_or_false),
    ]
    yield _declared("@in", [*within, *lists])
    either = [([true_or_false, _type(left), _type(right)], _type("dyn")) for left, right in _MIXED]
    yield _declared("_?_:_", [([true_or_false, some, some], some), *either])


def _config() -> cel.EnvConfig:
    functions = list(_comparisons())
    names = [{"name": function["name"]} for function in functions]
    config = {
        "name": "headwater",
        "stdlib": {"exclude_functions": names},
        "functions": functions,
    }
    # JSON is YAML.
    return cel.NewEnvConfigFromYaml(json.dumps(config))


def plain_environment(variables: Iterable[str], local: Callable[[str], object]) -> cel.Env:
    """Return the library's environment with these variables of any type.

    Args:
        variables: Names of shared values.
        local: Returns the value of a local name.
    """
    return cel.NewEnv(
        variables=dict.fromkeys(variables, cel.Type.DYN),
        extensions=[ext_strings.ExtStrings(), ext_bindings.ExtBindings()],
        functions=[_local_function(local)],
    )


def full_environment(variables: Iterable[str], local: Callable[[str], object]) -> cel.Env:
    """Return an environment with optional values, mathematics and this module, too."""
    own = [_local_function(local), *_arithmetic(), *_rounding(), _keys()]
    return cel.NewEnv(
        config=_config(),
        variables=dict.fromkeys(variables, cel.Type.DYN),
        extensions=[
            ext_strings.ExtStrings(),
            ext_bindings.ExtBindings(),
            ext_math.ExtMath(),
            ext_optional.ExtOptional(),
            cel.CelExtension("headwater", own),
        ],
    )
