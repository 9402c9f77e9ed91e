"""Compute which limit applies to a run: its key is a CEL expression over the run's params."""

import hashlib
import json
from functools import lru_cache
from typing import Final

from headwater.processors.cel_programs import ExpressionInvalid, ResultKind
from headwater.processors.cel_programs import Names as KnownNames
from headwater.processors.evaluations import EvaluationProblem, Evaluations
from headwater.processors.expressions import Expression, ExpressionValues
from headwater.processors.input_texts import JsonInvalid, read_json
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import bounded
from headwater.processors.runs.slots import SLOTS_ID, Concurrency, SlotScope
from headwater.schemas.failures import INVALID_PARAMS
from headwater.schemas.history import Json

#: Longest key, as JSON: it is shown wherever its slots are shown.
KEY_MAX: Final = 256
#: Compiled expressions that are cached: enough for all workflows of most workers.
_COMPILED_MAX: Final = 1_024
_PARAMS: Final = KnownNames("params")


def concurrency_problem(concurrency: Concurrency) -> str | None:
    """Return what is wrong with the expression of a limit's key, or None."""
    if concurrency.key is None:
        return None
    try:
        _expression(concurrency.key)
    except ExpressionInvalid as error:
        return f"expected the key of the limit to be an expression over params, found {error}"
    return None


def slot_scope(
    concurrency: Concurrency, params: Json, evaluations: Evaluations | None = None
) -> SlotScope | Rejection:
    """Return the limit that applies to a run with these params.

    The result is a rejection if the expression does not return text, a number or a boolean.
    """
    if concurrency.key is None:
        return SlotScope(SLOTS_ID)
    value = _evaluated(concurrency.key, params, evaluations)
    problem = value.message if isinstance(value, EvaluationProblem) else _key_problem(value)
    if problem is not None:
        return Rejection(
            INVALID_PARAMS,
            bounded(
                "expected params from which the key of the limit of concurrency can be computed, "
                f"{concurrency.key}, found that it gives none: {problem}"
            ),
        )
    # A sender may write the number 7 as 7.0.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    key = json.dumps(value, ensure_ascii=False)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return SlotScope(f"{SLOTS_ID}{digest[:32]}", key)


def _evaluated(source: str, params: Json, evaluations: Evaluations | None) -> object:
    try:
        facts = ExpressionValues({"params": read_json(params)}, _PARAMS)
    except JsonInvalid as error:
        # JSON has numbers of any length; the reader has a limit.
        return EvaluationProblem(str(error))
    return _expression(source).evaluate(facts, evaluations=evaluations)


def _key_problem(value: object) -> str | None:
    if not isinstance(value, str | int | float | bool):
        return f"expected a text, a number or a boolean, found {json.dumps(value)[:120]}"
    size = len(json.dumps(value, ensure_ascii=False))
    return f"expected at most {KEY_MAX} characters, found {size}" if size > KEY_MAX else None


@lru_cache(_COMPILED_MAX)
def _expression(source: str) -> Expression:
    return Expression(source, ResultKind.VALUE, _PARAMS)
