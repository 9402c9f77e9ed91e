"""Random graphs, built of blocks: each has a first and a last node, and blocks lie in blocks.

A node, blocks in a row, a fork with its joins around a block, two ways that meet again, a choice,
a loop around a block, and a node with a block for its error. The caller says which joins there are,
and what nodes do. Slashes in names of nodes and groups are where keys of the engine have some, too.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

#: What runs of these graphs are given.
INPUT: Final = {"few": [1, 2, 3], "one": [7], "none": []}
STRATEGIES: Final = ("all", "any", "m_of_n:1", "m_of_n:2")
_MERGES: Final = ("collect", "append", "keyed_by_branch", "last_wins")

#: Types of the events that nodes wait for; each occurs at many nodes.
EVENTS: Final = ("go", "stop")
#: Meeting points that a fork has besides its first.
_OTHER_JOINS_MAX: Final = 2

#: What a node has besides its ref and its mappings.
Does = Callable[[Random], dict[str, Any]]


def works(_: Random) -> dict[str, Any]:
    """A node with a task `work`."""
    return {"task": "work"}


def works_or_waits(draw: Random) -> dict[str, Any]:
    """A node with a task, or one that waits for a time, an event, or a child."""
    kind = draw.random()
    if kind < 0.1:
        return {"wait": {"durationMs": draw.choice([0, 1_000, 8_000])}}
    if kind < 0.2:
        timeout_ms = draw.choice([5_000, 3_600_000])
        return {"event": {"type": draw.choice(EVENTS), "timeoutMs": timeout_ms}}
    if kind < 0.25:
        return {"subworkflow": "child", "timeoutMs": draw.choice([5_000, 3_600_000])}
    retries = {"retries": {"limit": 2, "delay": "2 seconds", "backoff": "constant"}}
    return {"task": "work", **(retries if draw.random() < 0.5 else {})}


class Blocks:
    """Puts blocks together.

    Shape:  `timeouts` says whether joins may have one, `tolerant` whether branches may fail,
            `errors` whether transitions follow them, `limited` whether schemas and a timeout limit
            the run, `deep` how many blocks lie in each other.
    """

    def __init__(
        self,
        draw: Random,
        strategies: Sequence[str],
        does: Does = works,
        *,
        timeouts: bool = False,
        tolerant: bool = False,
        errors: bool = False,
        limited: bool = False,
    ) -> None:
        self.draw = draw
        self.strategies = strategies
        self.does = does
        self.timeouts = timeouts
        self.tolerant = tolerant
        self.errors = errors
        self.limited = limited
        self.nodes: list[dict[str, Any]] = []
        self.ways: list[dict[str, Any]] = []

    def document(self, name: str, deep: int = 2) -> dict[str, Any]:
        """A definition."""
        first, last = self.block(deep)
        self.way(last, self.node(), condition="true")
        begins: dict[str, Any] = {"name": name, "initialNodeRef": first}
        if self.tolerant and self.draw.random() < 0.4:
            begins["onDeadEnd"] = "fail"
        if self.limited:
            begins |= self.draw.choice([{}, {"timeoutMs": self.draw.choice([20_000, 600_000])}])
            text_or_null = {"properties": {"at": {"type": ["string", "null"]}}}
            begins |= self.draw.choice([{}, {"contextSchema": text_or_null}])
            begins |= self.draw.choice([{}, {"inputSchema": {"required": ["few"]}}])
        return {**begins, "nodes": self.nodes, "transitions": self.ways}

    def node(self) -> str:
        ref = f"n/{len(self.nodes)}"
        does = self.does(self.draw)
        provided = {"node": f"'{ref}'", "branch": "_branch.index"}
        result = {"output.at": "result.payload.at" if "event" in does else "result.at"}
        mappings = {"inputMapping": provided, "outputMapping": result}
        if "wait" in does or "event" in does:
            del mappings["inputMapping"]
        if self.limited and self.draw.random() < 0.2:
            result["state.at"] = result["output.at"]
        self.nodes.append({"ref": ref, **mappings, **does})
        return ref

    def way(self, start: str, end: str, **more: object) -> None:
        ref = f"w{len(self.ways)}"
        if more.get("on") == "error":
            (node,) = (node for node in self.nodes if node["ref"] == end)
            if "inputMapping" in node:
                node["inputMapping"] |= {"error": "error.message"}
        self.ways.append({"ref": ref, "fromNodeRef": start, "toNodeRef": end, **more})

    def block(self, deep: int) -> tuple[str, str]:
        kinds = ["node"]
        if deep:
            kinds += ["row", "fork", "apart", "choice", "loop", "straight"]
            # The order of two ways at once may decide what the output is.
            kinds += ["both"] if len(self.strategies) > 1 else []
            kinds += ["caught"] if self.errors else []
        kind = self.draw.choice(kinds)
        if kind == "node":
            only = self.node()
            return only, only
        result: tuple[str, str] = getattr(self, kind)(deep - 1)
        return result

    def row(self, deep: int) -> tuple[str, str]:
        first, last = self.block(deep), self.block(deep)
        self.way(first[1], last[0])
        return first[0], last[1]

    def fork(self, deep: int) -> tuple[str, str]:
        """So many branches of one block, of which every other may end elsewhere."""
        start, body, end = self.node(), self.block(deep), self.node()
        group = f"g/{len(self.ways)}"
        collection = self.draw.choice([*INPUT, None])
        many: dict[str, Any] = {"spawnCount": 2}
        if collection:
            many = {"foreach": {"collection": f"input.{collection}", "itemVar": "item"}}
            if self.draw.random() < 0.5:
                many["foreach"]["onEmpty"] = "fan_in"
        self.way(start, body[0], siblingGroup=group, **many)
        if self.errors and self.draw.random() < 0.2:
            instead = self.draw.choice([{"spawnCount": 2}, many])
            self.way(start, body[0], siblingGroup=group, on="error", **instead)
        if self.draw.random() < 0.5:
            # At the same priority, or in place of the join.
            elsewhere, tier = self.node(), self.draw.choice([-1, 0])
            self.way(body[1], elsewhere, condition="_branch.index % 2 == 1", priority=tier)
        join = self._join(group)
        self.way(body[1], end, synchronization=join)
        if self.errors and self.draw.random() < 0.3:
            self.way(body[1], end, synchronization=join, on="error")
        if self.errors and self.draw.random() < 0.3:
            self.way(end, self.node(), on="error")
        for _ in range(_OTHER_JOINS_MAX if len(self.strategies) > 1 else 0):
            if self.draw.random() < 0.4:
                self._other_join(body[1], end, join)
        return start, end

    def _other_join(self, start: str, end: str, join: dict[str, Any]) -> None:
        """One more meeting point of the same fork, which may lead to where the first does."""
        if self._continues_empty(join["siblingGroup"]):
            return
        other, tier = self.node(), self.draw.choice([-1, 0, 0])
        condition = self.draw.choice(["_branch.index < 1", "_branch.index % 2 == 0", "true"])
        other_join = {**join, "strategy": self.draw.choice(self.strategies)}
        self.way(start, other, condition=condition, priority=tier, synchronization=other_join)
        if self.errors and self.draw.random() < 0.3:
            self.way(start, other, on="error", synchronization=other_join)
        if self.draw.random() < 0.5:
            self.way(other, end)

    def _continues_empty(self, group: str) -> bool:
        """Whether a fork of this group asks for its only join when it is empty."""
        ways = [way for way in self.ways if way.get("siblingGroup") == group]
        return any("onEmpty" in way.get("foreach", {}) for way in ways)

    def apart(self, deep: int) -> tuple[str, str]:
        """Branches of different blocks, which are one fork."""
        start, left, right, end = self.node(), self.block(deep), self.block(deep), self.node()
        group = f"g/{len(self.ways)}"
        join = self._join(group)
        for item in (left, right):
            self.way(start, item[0], siblingGroup=group)
            self.way(item[1], end, synchronization=join)
        return start, end

    def straight(self, deep: int) -> tuple[str, str]:
        """A fork in a fork, of which the inner branches come to the meeting point of the outer."""
        start, middle, end = self.node(), self.node(), self.node()
        body = self.block(deep)
        outer = f"g/{len(self.ways)}"
        self.way(start, middle, siblingGroup=outer, spawnCount=2)
        self.way(middle, body[0], siblingGroup=f"g/{len(self.ways)}", spawnCount=2)
        join = self._join(outer)
        join["merge"]["source"] = "_branch.output"
        self.way(body[1], end, synchronization=join)
        return start, end

    def _join(self, group: str) -> dict[str, Any]:
        merge = {"source": "_branch.output.at", "target": "output.all"}
        # Of texts it fails, which an error transition may follow.
        merges = (*_MERGES, "merge_object") if self.errors else _MERGES
        merge["strategy"] = self.draw.choice(merges)
        join = {"strategy": self.draw.choice(self.strategies), "siblingGroup": group}
        if self.tolerant and self.draw.random() < 0.5:
            join["onBranchFailure"] = "tolerate"
        if self.timeouts and self.draw.random() < 0.4:
            then = self.draw.choice(["fail", "proceed_with_available", "proceed_with_available"])
            join |= {"timeoutMs": self.draw.choice([1_000, 6_000, 60_000]), "onTimeout": then}
        return {**join, "merge": merge}

    def choice(self, deep: int) -> tuple[str, str]:
        start, left, right, end = self.node(), self.block(deep), self.block(deep), self.node()
        when = self.draw.choice(["true", "state.missing > 1", "_branch.index == 0"])
        self.way(start, left[0], condition=when)
        self.way(start, right[0], priority=1)
        self.way(left[1], end)
        self.way(right[1], end)
        return start, end

    def both(self, deep: int) -> tuple[str, str]:
        """Two ways at once, whose end waits for both; in some graphs one of them may not come."""
        start, left, right, end = self.node(), self.block(deep), self.block(deep), self.node()
        self.nodes[-1]["join"] = "all"
        self.way(start, left[0])
        self.way(start, right[0])
        self.way(left[1], end)
        some = self.draw.random() < 0.1
        self.way(right[1], end, **({"condition": "_branch.index != 1"} if some else {}))
        return start, end

    def loop(self, deep: int) -> tuple[str, str]:
        body, end = self.block(deep), self.node()
        self.way(body[1], body[0], loopConfig={"maxIterations": self.draw.randint(1, 2)})
        self.way(body[1], end, priority=1)
        return body[0], end

    def caught(self, deep: int) -> tuple[str, str]:
        """A node, and a block that its errors lead to, which may be of a fork of its own."""
        first, end, instead = self.node(), self.node(), self.block(deep)
        when = self.draw.choice(["true", "error.message != ''", "_branch.index != 1"])
        self.way(first, end)
        self.way(first, instead[0], on="error", condition=when)
        self.way(instead[1], end)
        return first, end
