"""Parameters that a route has, each as often as it may come, and whole numbers in digits alone.

Else mistakes go unnoticed: Litestar passes over what it does not know, and takes 1e2 and 1.0.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, get_args

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import HeaderParameter, QueryParameter

from headwater.gateway.http.problems import Problem

_WHOLE: Final = re.compile(r"-?[0-9]+")
_SHOWN_CHARS: Final = 60
#: Bytes of a value: what is longer is no entry of an index of Postgres, which has 2,704 bytes, so
#: nothing equals it. Those that hold several values have limits of their own.
VALUE_BYTES_MAX: Final = 2_048
_OF_SEVERAL: Final = frozenset({"min_position"})
#: How often a parameter may come that may come several times.
REPEATS_MAX: Final = 100


class _Taken(NamedTuple):
    """What a handler takes: of its queries whether each may come several times, and numbers."""

    queries: dict[str, bool]
    numbers_in_queries: list[str]
    numbers_in_headers: list[str]


def checked_parameters(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Refuses what a handler does not take so; a guard of Litestar's.

    Errors: Problem.
    """
    taken = _taken(handler)
    for name, values in connection.query_params.dict().items():
        if name not in taken.queries:
            known = ", ".join(taken.queries) or "none"
            raise Problem(
                "unknown_parameter",
                f"expected parameters of {known}, found {name[:_SHOWN_CHARS]!r}",
                field=name[:_SHOWN_CHARS],
            )
        if len(values) > 1 and not taken.queries[name]:
            raise _invalid(name, f"it once, found it {len(values)} times")
        if len(values) > REPEATS_MAX:
            raise _invalid(name, f"it at most {REPEATS_MAX} times, found it {len(values)} times")
        if name not in _OF_SEVERAL:
            _check_sizes(name, values)
    for name, text in _numbers(connection, taken):
        if not _WHOLE.fullmatch(text):
            raise _invalid(name, f"a whole number in digits, found {text[:_SHOWN_CHARS]!r}")


def _check_sizes(name: str, values: Iterable[str]) -> None:
    for value in values:
        # A character has at most four bytes; halves of pairs of them are refused elsewhere.
        size = len(value.encode(errors="replace")) if len(value) * 4 > VALUE_BYTES_MAX else 0
        if size > VALUE_BYTES_MAX:
            raise _invalid(name, f"at most {VALUE_BYTES_MAX} bytes, found {size}")


def _numbers(
    connection: ASGIConnection[Any, Any, Any, Any], taken: _Taken
) -> Iterator[tuple[str, str]]:
    for name in taken.numbers_in_queries:
        for text in connection.query_params.getall(name, []):
            yield name, text
    for name in taken.numbers_in_headers:
        if name in connection.headers:
            yield name, connection.headers[name]


def _invalid(name: str, expected: str) -> Problem:
    return Problem("invalid_parameter", f"{name}: expected {expected}", field=name)


@cache
def _taken(handler: BaseRouteHandler) -> _Taken:
    takers = [handler.parsed_fn_signature]
    takers += [each.parsed_fn_signature for each in handler.resolve_dependencies().values()]
    taken = _Taken({}, [], [])
    for field in (field for taker in takers for field in taker.parameters.values()):
        definition = field.kwarg_definition
        is_number = int in (field.annotation, *get_args(field.annotation))
        if isinstance(definition, QueryParameter):
            name, types = definition.name or field.name, (field, *field.inner_types)
            taken.queries[name] = any(each.is_non_string_collection for each in types)
            taken.numbers_in_queries.extend([name] if is_number else ())
        elif isinstance(definition, HeaderParameter) and is_number:
            taken.numbers_in_headers.append(definition.name or field.name)
    return taken
