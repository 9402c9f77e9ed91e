"""Parameters of queries that a route does not have: a typing error would else go unnoticed."""

from functools import cache
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter

from headwater.gateway.http.problems import Problem

_SHOWN_CHARS = 60


def known_parameters(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Refuses parameters that a handler does not take; a guard of Litestar's.

    Errors: Problem, which names those that it takes.
    """
    for name in connection.query_params:
        if name not in _names(handler):
            known = ", ".join(_names(handler)) or "none"
            raise Problem(
                "unknown_parameter",
                f"expected parameters of {known}, found {name[:_SHOWN_CHARS]!r}",
                field=name[:_SHOWN_CHARS],
            )


@cache
def _names(handler: BaseRouteHandler) -> tuple[str, ...]:
    takers = [handler.parsed_fn_signature]
    takers += [each.parsed_fn_signature for each in handler.resolve_dependencies().values()]
    fields = [field for taker in takers for field in taker.parameters.values()]
    return tuple(
        field.kwarg_definition.name or field.name
        for field in fields
        if isinstance(field.kwarg_definition, QueryParameter)
    )
