"""Whole numbers in queries and headers: digits alone; Litestar would also take 1e2 and 1.0."""

import re
from functools import cache
from typing import Any, Final, get_args

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import HeaderParameter, QueryParameter

from headwater.gateway.http.problems import Problem

_WHOLE: Final = re.compile(r"-?[0-9]+")
_SHOWN_CHARS: Final = 60


def whole_numbers(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Refuses whatever else stands where a handler takes a whole number; a guard of Litestar's.

    Errors: Problem.
    """
    queries, headers = _numbers(handler)
    given = [(name, text) for name in queries for text in connection.query_params.getall(name, [])]
    given += [(name, connection.headers[name]) for name in headers if name in connection.headers]
    for name, text in given:
        if not _WHOLE.fullmatch(text):
            found = repr(text[:_SHOWN_CHARS])
            detail = f"{name}: expected a whole number in digits, found {found}"
            raise Problem("invalid_parameter", detail, field=name)


@cache
def _numbers(handler: BaseRouteHandler) -> tuple[list[str], list[str]]:
    """The names of the numbers that a handler takes: those of queries, and of headers."""
    takers = [handler.parsed_fn_signature]
    takers += [each.parsed_fn_signature for each in handler.resolve_dependencies().values()]
    queries, headers = [], []
    for field, definition in (
        (field, field.kwarg_definition) for taker in takers for field in taker.parameters.values()
    ):
        if int in (field.annotation, *get_args(field.annotation)):
            if isinstance(definition, QueryParameter):
                queries.append(definition.name or field.name)
            elif isinstance(definition, HeaderParameter):
                headers.append(definition.name or field.name)
    return queries, headers
