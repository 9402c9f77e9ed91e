"""Which limit a run falls under: the key of it is computed from the run's params, by CEL."""

import hashlib
import json
from functools import lru_cache
from typing import Final

from headwater.processors.evaluations import Evaluations, Fault
from headwater.processors.expressions import Expression, ExpressionInvalid, Facts, Gives
from headwater.processors.expressions import Names as KnownNames
from headwater.processors.json_texts import JsonInvalid, read_json
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import bounded
from headwater.processors.runs.slots import SLOTS_ID, Concurrency, Place
from headwater.schemas.failures import INVALID_PARAMS
from headwater.schemas.history import Json

#: Longest key, as JSON: it is shown wherever its slots are.
KEY_MAX: Final = 256
#: Expressions that stay compiled: those of all workflows that most workers will ever have.
_COMPILED_MAX: Final = 1_024
_PARAMS: Final = KnownNames("params")


def concurrency_fault(concurrency: Concurrency) -> str | None:
    """Says what is wrong with the expression of a limit's key, if anything."""
    if concurrency.key is None:
        return None
    try:
        _expression(concurrency.key)
    except ExpressionInvalid as why:
        return f"expected the key of the limit to be an expression over params, found {why}"
    return None


def place_of(
    concurrency: Concurrency, params: Json, evaluations: Evaluations | None = None
) -> Place | Rejection:
    """The limit that a run with these params falls under.

    Errors: as a rejection, where the expression gives no text, number or boolean for them.
    """
    if concurrency.key is None:
        return Place(SLOTS_ID)
    found = _evaluated(concurrency.key, params, evaluations)
    why = found.message if isinstance(found, Fault) else _fault(found)
    if why is not None:
        return Rejection(
            INVALID_PARAMS,
            bounded(
                "expected params from which the key of the limit of concurrency can be computed, "
                f"{concurrency.key}, found that it gives none: {why}"
            ),
        )
    key = json.dumps(found, ensure_ascii=False)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return Place(f"{SLOTS_ID}{digest[:32]}", key)


def _evaluated(source: str, params: Json, evaluations: Evaluations | None) -> object:
    try:
        facts = Facts({"params": read_json(params)}, _PARAMS)
    except JsonInvalid as error:
        # JSON has numbers of any length; what reads it here has not.
        return Fault(str(error))
    return _expression(source).evaluate(facts, evaluations=evaluations)


def _fault(found: object) -> str | None:
    if not isinstance(found, str | int | float | bool):
        return f"expected a text, a number or a boolean, found {json.dumps(found)[:120]}"
    size = len(json.dumps(found, ensure_ascii=False))
    return f"expected at most {KEY_MAX} characters, found {size}" if size > KEY_MAX else None


@lru_cache(_COMPILED_MAX)
def _expression(source: str) -> Expression:
    return Expression(source, Gives.VALUE, _PARAMS)
