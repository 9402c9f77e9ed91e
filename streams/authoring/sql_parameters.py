"""Encode the parameters of an author's SQL as JSON, for `%s` or `%(name)s`."""

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from headwater.schemas.history import Json


def sql_parameters(params: Any) -> Json:  # noqa: ANN401, it is an author's
    """Return the parameters of a statement as a JSON list or object.

    Args:
        params: A list or a tuple, in the order of the `%s` in the statement, or a dict with the
            values of `%(name)s`. A value is JSON, a date or time, a Decimal or a UUID.

    Raises:
        TypeError: `params` is neither, or a value has another type.
        ValueError: A text contains NUL, which Postgres cannot store, or a number is not finite,
            which JSON cannot represent.
    """
    if isinstance(params, Mapping):
        named: Any = dict(params)
        wrong = [name for name in named if not isinstance(name, str)]
        if wrong:
            raise TypeError(f"expected names of SQL parameters as text, found {wrong[0]!r:.80}")
        values = list(named.values())
    elif isinstance(params, list | tuple):
        named = values = list(params)
    else:
        raise TypeError(
            "expected SQL parameters as a list or a tuple for %s, or as a dict for %(name)s, found "
            f"{type(params).__name__}: {params!r:.80}"
        )
    for value in values:
        _check(value)
    return json.dumps(named, default=_as_text)


def _check(value: object) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            _check(item)
    elif isinstance(value, str) and "\0" in value:
        raise ValueError(
            f"expected texts without NUL as SQL parameters, found {value!r:.80}: Postgres has no "
            "such texts"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"expected finite numbers as SQL parameters, found {value}: use None, or the text of "
            "the number and a cast"
        )


def _as_text(value: object) -> str:
    if isinstance(value, datetime | date | Decimal | UUID):
        return str(value)
    raise TypeError(
        f"expected SQL parameters that are JSON, dates, Decimal or UUID, "
        f"found {type(value).__name__}"
    )
