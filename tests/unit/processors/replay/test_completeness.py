"""Every event has its applier, and everything that is asked for its decision."""

from typing import get_args

from headwater.processors.code import appliers, decide
from headwater.processors.code.host_messages import CodeCommand
from headwater.processors.graph import appliers as graph_appliers
from headwater.processors.rows.plan import INSTANCE_ONLY, PLANNERS
from headwater.processors.runs import appliers as runs
from headwater.processors.runs.decisions import HostFailed, Request, StepUnderWay, Wake
from headwater.schemas.history import LogEvent, PostsSent, RunCommand, RunStarted
from headwater.schemas.history.code import CodeEvent
from headwater.schemas.history.graph import GraphEvent
from headwater.schemas.history.records import SlotEvent
from headwater.schemas.history.runs import LifeEvent
from tests.unit.processors.replay.test_decide_asked import CASES
from tests.unit.processors.replay.test_decide_command import ACCEPTED, REFUSED

#: What begins a run, and what is known of its posts, are no moves.
ELSEWHERE = {RunStarted, PostsSent}


def test_every_event_of_a_runs_life_has_an_applier():
    assert {*runs.APPLIERS, *ELSEWHERE} == {*get_args(LifeEvent)}
    assert not ELSEWHERE & set(runs.APPLIERS)


def test_every_event_of_a_run_of_code_has_an_applier():
    own = set(appliers._APPLIERS)
    assert own | set(runs.APPLIERS) | ELSEWHERE == {*get_args(LifeEvent), *get_args(CodeEvent)}
    assert not ELSEWHERE & own


def test_every_event_of_a_run_of_a_graph_has_an_applier():
    result = set(graph_appliers._APPLIERS)
    assert result | ELSEWHERE == {*get_args(LifeEvent), *get_args(GraphEvent)}
    assert not ELSEWHERE & result


def test_every_event_of_the_log_has_its_rows_or_is_said_to_have_none():
    assert {*PLANNERS, *INSTANCE_ONLY, *get_args(SlotEvent)} == set(get_args(LogEvent))
    assert not INSTANCE_ONLY & set(PLANNERS)


def test_everything_that_code_its_host_and_the_clock_ask_for_has_a_decider():
    requested = {*get_args(CodeCommand), HostFailed, StepUnderWay, Wake}
    assert set(decide._DECIDERS) == requested
    assert requested == set(Request.__subclasses__())


def test_every_command_and_everything_that_is_asked_for_has_a_row_in_the_tables_of_these_tests():
    assert {type(requested) for _, requested, _ in CASES.values()} == set(decide._DECIDERS)
    commands_of = {type(command) for _, command, _ in (*ACCEPTED.values(), *REFUSED.values())}
    assert commands_of == set(get_args(RunCommand))
