"""Parameters of queries that a route does not have, or has once: else mistakes go unnoticed."""

from collections.abc import Mapping
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
    """Refuses parameters that a handler does not take, or not twice; a guard of Litestar's.

    Errors: Problem, which names those that it takes.
    """
    taken = _taken(handler)
    for name, values in connection.query_params.dict().items():
        if name not in taken:
            known = ", ".join(taken) or "none"
            raise Problem(
                "unknown_parameter",
                f"expected parameters of {known}, found {name[:_SHOWN_CHARS]!r}",
                field=name[:_SHOWN_CHARS],
            )
        if len(values) > 1 and not taken[name]:
            raise Problem(
                "invalid_parameter",
                f"{name}: expected it once, found it {len(values)} times",
                field=name,
            )


@cache
def _taken(handler: BaseRouteHandler) -> Mapping[str, bool]:
    """The parameters of a handler, and whether each may come several times."""
    takers = [handler.parsed_fn_signature]
    takers += [each.parsed_fn_signature for each in handler.resolve_dependencies().values()]
    fields = [field for taker in takers for field in taker.parameters.values()]
    return {
        field.kwarg_definition.name or field.name: any(
            each.is_non_string_collection for each in (field, *field.inner_types)
        )
        for field in fields
        if isinstance(field.kwarg_definition, QueryParameter)
    }
