"""Refusals are told of, but no more often than anybody would read."""

import asyncio

import pytest

from headwater.gateway.http.refusals import _KINDS_MAX, Refusals
from headwater.schemas.records import RequestAnswered
from tests.fakes.delivery_log import MemoryAnswers
from tests.fakes.delivery_log import an_answer as of


def refused(log: MemoryAnswers, answers: list[RequestAnswered]) -> None:
    """Refuses them, and waits until the while is over."""

    async def whole() -> None:
        refusals = Refusals(log, while_s=0.01)
        for answer in answers:
            refusals.refused(answer)
        await asyncio.sleep(0.03)

    asyncio.run(whole())


def test_of_many_alike_the_first_and_the_last_are_told_with_the_number_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryAnswers()
    refused(log, [of(str(number)) for number in range(100)])
    assert [(one.request_id, one.left_out) for one in log.recorded] == [("0", 0), ("99", 98)]
    assert [message.partition("left_out=")[2] for message in caplog.messages] == [
        "0: expected another time",
        "98: expected another time",
    ]


def test_of_two_alike_both_are_told_and_of_one_that_one() -> None:
    log = MemoryAnswers()
    refused(log, [of("0"), of("1")])
    refused(log, [of("2")])
    assert [(one.request_id, one.left_out) for one in log.recorded] == [
        ("0", 0), ("1", 0), ("2", 0),
    ]  # fmt: skip


def test_other_sources_addresses_codes_and_reasons_are_told_apart() -> None:
    log = MemoryAnswers()
    others = [of("1", source="x"), of("2", peer="x"), of("3", code="x"), of("4", reason="x")]
    refused(log, [of("0"), *others])
    assert [one.request_id for one in log.recorded] == ["0", "1", "2", "3", "4"]


def test_of_a_flood_from_many_addresses_the_number_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryAnswers()
    refused(log, [of(str(number), peer=str(number)) for number in range(_KINDS_MAX + 5)])
    assert len(log.recorded) == _KINDS_MAX
    assert caplog.messages[-1].startswith("refused beyond=5")
