"""Goal: who asks at the same time is answered by one question, each with what is theirs."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from headwater.gateway.api.workflows.command_outcomes import InstanceKey, Statuses
from headwater.schemas.answers import InstanceStatus
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.statuses import RunStatus

MANY = 120


class Postgres:
    """Instances of the workflow "order", of which every third there is none."""

    def __init__(self) -> None:
        self.asked: list[Sequence[InstanceKey]] = []
        self.away = False

    async def ask(self, names: Sequence[InstanceKey]) -> Mapping[InstanceKey, InstanceStatus]:
        self.asked.append(names)
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("expected Postgres, found none")
        return {
            (workflow, name): InstanceStatus(status=RunStatus.COMPLETE, output=name)
            for workflow, name in names
            if int(name) % 3
        }


def test_those_who_ask_together_are_answered_together():
    async def scenario() -> None:
        postgres = Postgres()
        statuses = Statuses(postgres.ask)
        numbers = [str(number) for number in range(MANY)]
        result = await asyncio.gather(
            *(statuses.status_of("order", item) for item in [*numbers, "1"])
        )
        outputs = [item and item.output for item in result]
        assert outputs == [item if int(item) % 3 else None for item in [*numbers, "1"]]
        assert [len(names) for names in postgres.asked] == [50, 50, 20]
        await statuses.status_of("order", "1")
        assert len(postgres.asked) == 4, "what was found before is not told again"

    asyncio.run(scenario())


def test_who_leaves_takes_nobody_along_and_a_failure_is_told_to_all():
    async def scenario() -> None:
        postgres = Postgres()
        statuses = Statuses(postgres.ask)
        one, two = (asyncio.create_task(statuses.status_of("order", "1")) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        answer = await two
        assert answer is not None
        assert answer.output == "1"
        postgres.away = True
        for failed in await asyncio.gather(
            *(statuses.status_of("order", str(number)) for number in range(3)),
            return_exceptions=True,
        ):
            assert isinstance(failed, StoreUnavailable)
        postgres.away = False
        with pytest.raises(asyncio.CancelledError):
            await one
        assert await statuses.status_of("order", "3") is None

    asyncio.run(scenario())
