"""Owners and hosts over logs in memory, with everything that can go wrong drawn from one seed.

Owner, host, workflow loop and the fold are those of production. Played are Kafka (lists), the time,
the callbacks' own time, the network between owner and host, and the processes that come and go:
they crash before, in and after an append and between its effects, are superseded without knowing
it, leave records on the wire that land late, read commands again, send posts again, and lose their
host. The laws are checked while the world runs (`engine_log`, `engine_process`) and at its end.

    python -m tests.simulation.engine --seeds 10000 --from 0
        [--graphs | --cancels | --slots | --released]
"""

import argparse
import random
import sys
import time
from collections.abc import Collection, Mapping
from functools import cache
from typing import Final

from tests.simulation.engine_laws import ends
from tests.simulation.engine_switches import STARTED, Switches
from tests.simulation.engine_world import Root, Rules, World
from tests.simulation.graph_corpus import GRAPH_SHAPES
from tests.simulation.shapes import SHAPES, Violation

VARIANTS: Final = {"drawn": 60, "left_behind": 60, "tidies": 60, "grown": 10**6, "gardener": 10**6}
#: What is drawn if nothing else is said; the others are of use where runs are cancelled, or wait.
_DRAWN: Final = sorted(SHAPES.keys() - {"tidies", "limited"})
_ALL: Final = {**SHAPES, **GRAPH_SHAPES}

Ends = dict[str, tuple[object, ...]]


@cache
def expected(name: str, variant: int, order: int = 0) -> Ends:
    """How the instances of a shape end when nothing goes wrong, in one of the possible orders."""
    shape = _ALL[name]
    world = World(f"{name}/{variant}/{order}", [Root(shape, variant, list(shape.script))])
    world.run(faults=0)
    world.close()
    return ends(world)


def roots_of(seed: int, shapes: Collection[str] = ()) -> list[Root]:
    """What a seed starts: one to four shapes, or those that are given."""
    draw = random.Random(f"roots of {seed}")
    names = list(shapes) or draw.sample(_DRAWN, draw.randint(1, 3))
    names += ["drawn"] * (not shapes and "drawn" not in names and draw.random() < 0.5)
    variants = {
        name: draw.sample(range(VARIANTS.get(name, 6)), names.count(name)) for name in names
    }
    return [Root(_ALL[name], variants[name].pop(), list(_ALL[name].script)) for name in names]


def run(
    seed: int,
    rules: Rules | None = None,
    shapes: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
    *,
    released: bool = False,
    switches: type[Switches] | None = None,
) -> World:
    """Run a world from a seed to its end.

    Args:
        seed: Seed of the world and of its faults.
        rules: Rules of the engine; the real ones by default.
        shapes: Names of the workflows; one to four are drawn by default.
        rates: Rates of faults by name; the others are drawn.
        released: Whether code is deployed.
        switches: What operators do with deployments.

    Raises:
        Violation: A law is broken; the message has the seed and the trace.
    """
    draw = random.Random(f"faults of {seed}")
    world = World(
        *(seed, roots_of(seed, shapes), rules, draw.randint(2, 3)),
        released=released,
        switches=switches,
    )
    try:
        world.run(draw.randint(30, 500), rates)
        _compare(world)
    except Exception as error:
        names = ", ".join(f"{root.shape.name} {root.variant}" for root in world.roots)
        error.add_note(f"seed {seed}: {names}\n{world.traced()}")
        raise
    finally:
        world.close()
    return world


def _compare(world: World) -> None:
    result = ends(world)
    for root in world.roots:
        if root.ended_early:
            continue
        for key, end in _expected_of(root).items():
            if result.get(key) != end:
                raise Violation(f"{key}: expected {end}, found {result.get(key)}")


def _expected_of(root: Root) -> Ends:
    """What is compared; children of graphs are named after tokens, which come in any order."""
    if not root.shape.graphs:
        return expected(root.shape.name, root.variant)
    key = f"{root.shape.name}/{root.instance_id}"
    return {} if root.variant % 2 else {key: expected(root.shape.name, root.variant)[key]}


def graph_shapes(seed: int) -> list[str]:
    """What a seed of graphs starts: a graph or code that runs one, sometimes beside other code."""
    draw = random.Random(f"graphs of {seed}")
    others = draw.sample(_DRAWN, 1) if draw.random() < 0.2 else []
    return [draw.choice(["grown", "grown", "gardener"]), *others]


#: Rates of worlds whose runs are cancelled.
CANCELS: Final[Mapping[str, float]] = {"cancel": 0.01}


def cancelled_shapes(seed: int) -> list[str]:
    """What a seed starts whose runs are cancelled: code that cleans up, and some other."""
    draw = random.Random(f"cancelled of {seed}")
    return ["tidies", draw.choice(["tidies", *_DRAWN])]


def limited_shapes(seed: int) -> list[str]:
    """What a seed starts whose runs wait for slots: some that are limited, sometimes another."""
    draw = random.Random(f"limited of {seed}")
    others = draw.sample(_DRAWN, 1) if draw.random() < 0.2 else []
    return ["limited"] * draw.randint(1, 3) + others


def switched_shapes(seed: int) -> list[str]:
    """What a seed starts whose deployments are switched: code that is started again, and other."""
    draw = random.Random(f"switched of {seed}")
    others = ["join_in_race", "crowd", "children", "family", "orphans", "mended", "drawn"]
    return [draw.choice(STARTED), draw.choice(others)]


def main() -> None:
    """Runs many seeds, and prints those that fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="worlds of graphs")
    parser.add_argument("--cancels", action="store_true", help="worlds whose runs are cancelled")
    parser.add_argument("--released", action="store_true", help="worlds with deployments")
    parser.add_argument("--switches", action="store_true", help="worlds that switch deployments")
    parser.add_argument("--slots", action="store_true", help="worlds whose runs wait for slots")
    options = parser.parse_args()
    began, failed = time.perf_counter(), []
    for seed in range(options.first, options.first + options.seeds):
        try:
            if options.cancels:
                run(seed, shapes=cancelled_shapes(seed), rates=CANCELS)
            elif options.released:
                run(seed, released=True)
            elif options.switches:
                run(seed, shapes=switched_shapes(seed), switches=Switches)
            elif options.slots:
                run(seed, shapes=limited_shapes(seed))
            else:
                run(seed, shapes=graph_shapes(seed) if options.graphs else ())
        except Exception as error:  # noqa: BLE001, whatever it is: the seed is told
            failed.append(seed)
            head = error.__notes__[0] if options.trace else error.__notes__[0].split("\n")[0]
            sys.stdout.write(f"{type(error).__name__}: {str(error)[:1_500]}\n{head}\n\n")
    took = time.perf_counter() - began
    sys.stdout.write(f"{options.seeds} seeds in {took:.1f} s, {len(failed)} failed: {failed}\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
