"""Two hosts in the harness: that of the apps, and that of what comes with Headwater."""

import asyncio
from collections import Counter

from headwater import Step, WorkflowEvent, WorkflowTest, workflow

ORDERS = 20
APP, SYSTEM = 1, 0


class World:
    """Orders in the one host, audits in the other, each with a step that takes ten seconds."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

        @workflow("order")
        async def order(event: WorkflowEvent, step: Step) -> object:
            return await step.do("pay", lambda: self.takes_time(event.instance_id))

        @workflow("headwater-audit")
        async def audit(event: WorkflowEvent, step: Step) -> object:
            return await step.do("look", lambda: self.takes_time(event.instance_id))

        self.test = WorkflowTest([order, audit])

    async def takes_time(self, what: str) -> str:
        self.calls[what] += 1
        await self.test.sleep("10 seconds")
        return what

    def lose(self, host: int) -> None:
        test = self.test
        test._hosts[host].stop()
        test._driver.host_lost("the host was killed", host=host)
        test._hosts[host] = test._new_host(host)
        test._driver.host_started(host)


def lost(host: int) -> tuple[list[str], Counter[str], list[int]]:
    """What is output, which callbacks were called, and how often each was tried, orders first."""
    world = World()

    async def scene() -> tuple[list[str], Counter[str], list[int]]:
        async with world.test as test:
            names = [("order", f"o{n}") for n in range(ORDERS)] + [("headwater-audit", "a")]
            instances = [await test.create(item, id=name) for item, name in names]
            await test.advance("5 seconds")
            world.lose(host)
            await test.advance("5 minutes")
            histories = [await instance.history() for instance in instances]
            outputs = [(await instance.status()).output for instance in instances]
            return outputs, world.calls, [history.steps[0].attempts for history in histories]

    return asyncio.run(scene())


ALL = [*(f"o{n}" for n in range(ORDERS)), "a"]


def test_a_host_that_is_lost_costs_the_runs_of_the_others_nothing():
    outputs, calls, attempts = lost(SYSTEM)
    assert outputs == ALL
    assert attempts == [1] * ORDERS + [2]
    assert calls == Counter(ALL) + Counter(["a"])


def test_what_a_lost_host_had_under_way_is_tried_again():
    outputs, calls, attempts = lost(APP)
    assert outputs == ALL
    assert attempts == [2] * ORDERS + [1]
    assert calls["a"] == 1
    assert all(calls[name] == 2 for name in ALL[:-1])
