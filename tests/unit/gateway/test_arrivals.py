"""Deliveries that arrive together: each has its own answer, whatever the others meet."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from headwater.gateway.api.delivery_reader import Answer, DeliveryReader, IncomingDelivery
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_of
from headwater.processors.providers.envelope import Malformed, Routing
from headwater.processors.signatures import Claim, Refused, read_claim, sign
from headwater.processors.sources import Source
from headwater.streams.pipeline.webhook_log import Appended
from tests.fakes.delivery_log import MemoryLog

SECRET = "a secret of tests"


def source(read: Callable[[bytes, Mapping[str, str]], Routing | Malformed] | None = None) -> Source:
    (terra,) = [one for one in sources_of(Settings()) if one.name == "terra"]
    provider = terra.provider if read is None else replace(terra.provider, read=read)
    return replace(terra, secrets=(SECRET,), provider=provider)


def arrival(body: bytes, secret: str = SECRET) -> IncomingDelivery:
    scheme, now_s = source().scheme, int(time.time())
    headers = sign(scheme, body, secret, now_s)
    claim = read_claim(scheme, headers, now_s)
    assert isinstance(claim, Claim)
    return IncomingDelivery(body, claim, headers, "request-1", now_s * 1000)


def body_of(subject: str) -> bytes:
    return b'{"type":"daily","user":{"user_id":"%s"}}' % subject.encode()


async def answers_to(
    arrivals: DeliveryReader, arrived: Sequence[IncomingDelivery]
) -> list[Answer | BaseException]:
    handled = (arrivals.process(one) for one in arrived)
    return list(await asyncio.gather(*handled, return_exceptions=True))


def test_each_of_those_that_arrive_together_has_its_own_answer() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        arrived = [
            arrival(body_of("a")),
            arrival(body_of("b"), "another secret"),
            arrival(b"{"),
            arrival(body_of("a")),
            arrival(b""),
            arrival(body_of("c")),
        ]
        result = await answers_to(DeliveryReader(source(), log), arrived)
        assert result[0] == Appended(duplicate=False)
        assert isinstance(result[1], Refused)
        assert result[2] == Appended(duplicate=False)
        assert result[3] == Appended(duplicate=True)
        assert result[4] == Appended(duplicate=False)
        assert result[5] == Appended(duplicate=False)
        read = [(one.type, one.subject) for one in log.deliveries]
        assert read == [("daily", "a"), ("unreadable", ""), ("unreadable", ""), ("daily", "c")]

    asyncio.run(scenario())


def _raises(error: Exception) -> Callable[[], Routing]:
    def read() -> Routing:
        raise error

    return read


#: What a provider with a bug does with a body: it raises, or routes to what no record can hold.
BUGS: dict[str, Callable[[], Routing]] = {
    "RuntimeError": _raises(RuntimeError("a bug of the provider's")),
    "RecursionError": _raises(RecursionError("too deep")),
    "UnicodeDecodeError": _raises(UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid start byte")),
    "MemoryError": _raises(MemoryError()),
    "half a character": lambda: Routing("daily", "\ud800"),
    "half a character in the reference": lambda: Routing("daily", "b", "user_\ud800"),
    "a number beyond 64 bits": lambda: Routing("daily", "b", None, 2**70),
    "no text": lambda: Routing("daily", None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_that_one_delivery_meets_costs_neither_it_nor_the_others(
    bug: Callable[[], Routing],
) -> None:
    def read(body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
        return bug() if b'"b"' in body else source().provider.read(body, headers)

    async def scenario() -> None:
        log, arrived = MemoryLog(), [arrival(body_of(subject)) for subject in "abc"]
        result = await answers_to(DeliveryReader(source(read), log), arrived)
        assert result == [Appended(duplicate=False)] * 3
        read_as = {one.body: (one.type, one.subject) for one in log.deliveries}
        assert read_as == {
            body_of("a"): ("daily", "a"),
            body_of("b"): ("unreadable", ""),
            body_of("c"): ("daily", "c"),
        }

    asyncio.run(scenario())


def test_a_log_with_a_bug_fails_the_request_and_appends_nothing() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.fault = RuntimeError("a bug of the log's")
        (result,) = await answers_to(DeliveryReader(source(), log), [arrival(body_of("a"))])
        assert isinstance(result, RuntimeError)
        assert not log.deliveries

    asyncio.run(scenario())
