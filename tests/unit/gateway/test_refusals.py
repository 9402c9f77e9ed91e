"""Refusals are told of, but no more often than anybody would read."""

import asyncio

import pytest

from headwater.gateway.api.refusals import _KINDS_MAX, _RECORDS_MAX, Refusals
from headwater.schemas.records import RequestAnswered
from tests.fakes.delivery_log import MemoryAnswers
from tests.fakes.delivery_log import an_answer as of


def refused(log: MemoryAnswers, answers: list[RequestAnswered]) -> None:
    """Refuses them, and waits until the while is over."""

    async def whole() -> None:
        refusals = Refusals(log, window_s=0.01)
        for answer in answers:
            refusals.refused(answer)
        await asyncio.sleep(0.03)

    asyncio.run(whole())


def test_of_many_alike_the_first_and_the_last_have_a_line_with_the_number_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused(MemoryAnswers(), [of(str(number)) for number in range(100)])
    assert [message.partition("left_out=")[2] for message in caplog.messages] == [
        "0: expected another time",
        "98: expected another time",
    ]


def test_each_has_a_record_of_its_own_as_long_as_nobody_floods_us() -> None:
    log = MemoryAnswers()
    refused(log, [of(str(number)) for number in range(_RECORDS_MAX)])
    assert [one.request_id for one in log.recorded] == [str(n) for n in range(_RECORDS_MAX)]
    assert {one.left_out for one in log.recorded} == {0}


def test_of_a_flood_the_first_and_the_last_alike_have_a_record_with_the_number_between() -> None:
    log = MemoryAnswers()
    flood = [of(str(number)) for number in range(_RECORDS_MAX + 100)]
    refused(log, [*flood, of("other", source="x")])
    beyond = [(one.request_id, one.left_out) for one in log.recorded[_RECORDS_MAX:]]
    assert beyond == [("other", 0), (str(_RECORDS_MAX + 99), 99)]


def test_other_sources_addresses_codes_and_reasons_are_told_apart() -> None:
    log = MemoryAnswers()
    others = [of("1", source="x"), of("2", peer="x"), of("3", code="x"), of("4", reason="x")]
    refused(log, [of("0"), *others])
    assert [one.request_id for one in log.recorded] == ["0", "1", "2", "3", "4"]


def test_of_a_flood_from_many_addresses_the_number_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryAnswers()
    alike = [of(str(number), peer="0") for number in range(_RECORDS_MAX)]
    refused(log, [*alike, *(of(str(n), peer=str(n)) for n in range(_KINDS_MAX + 5))])
    assert len(log.recorded) == _RECORDS_MAX + _KINDS_MAX
    assert caplog.messages[-1].startswith("refused beyond=5")
