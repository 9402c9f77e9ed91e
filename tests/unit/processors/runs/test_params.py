"""Params that are JSON and yet cannot be read stop no owner: they are refused."""

import pytest

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import graph_of
from headwater.processors.runs.decisions import Facts, Rejection
from headwater.processors.runs.params import params_problem
from headwater.schemas.failures import INVALID_PARAMS
from headwater.schemas.history import StartRun
from tests.unit.processors.graph.graphs import document, node

UNREADABLE = ["9" * 5_000, "[" * 5_000 + "]" * 5_000]


@pytest.mark.parametrize("params", UNREADABLE, ids=["number", "depth"])
def test_params_of_a_workflow_that_cannot_be_read_do_not_fit(params: str):
    fault = params_problem('{"type": "object"}', params)
    assert fault is not None
    assert fault.startswith("params that cannot be read: ")


@pytest.mark.parametrize("params", UNREADABLE, ids=["number", "depth"])
def test_a_graph_refuses_an_input_that_cannot_be_read(params: str):
    engine = GraphEngine([graph_of(document([node("a")]))])
    refused = engine.decide_command(None, StartRun(params), Facts("review", "r-1", 0, 0))
    assert isinstance(refused, Rejection)
    assert refused.code == INVALID_PARAMS
    assert refused.message.startswith("input: expected JSON that can be read, found: ")
