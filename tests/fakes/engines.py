"""The engines that tests hand in."""

from functools import partial

from headwater.processors.code.engine import ReplayEngine
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.runs import engine
from headwater.processors.runs.engine import Engines
from headwater.processors.slots.engine import SlotsEngine
from tests.fakes.counter import CounterEngine

REPLAY = ReplayEngine()
#: Histories that tests write name no kind.
ENGINES: Engines = {
    ReplayEngine.kind: REPLAY,
    GraphEngine.kind: GraphEngine(),
    CounterEngine.kind: CounterEngine(),
    SlotsEngine.kind: SlotsEngine(),
    "": REPLAY,
}

fold = partial(engine.fold, ENGINES)
runs = partial(engine.runs, ENGINES)
