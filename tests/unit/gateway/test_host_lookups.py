"""Look-ups of host names: one at a time of a name, and none delays another."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from headwater.gateway.builtin.host_lookups import HostLookups


class Names:
    """Name servers: names that begin with `slow` have no answer until the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.ended = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, host: str, port: int, **_: Any) -> list[Any]:  # noqa: ANN401 (JSON)
        self.asked.append(host)
        if host.startswith("slow"):
            self.ended.wait(10)
        if host.startswith("none"):
            raise socket.gaierror("no such name")
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", port))] * 2


def test_addresses_come_without_zones_and_once(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        lookups = HostLookups(2)
        assert [str(one) for one in await lookups.addresses("example.com", 443)] == ["fe80::1"]
        assert [str(one) for one in await lookups.addresses("10.0.0.1", 443)] == ["10.0.0.1"]
        with pytest.raises(OSError, match="no such name"):
            await lookups.addresses("none.example.com", 443)
        lookups.close()

    Names(monkeypatch)
    asyncio.run(main())


def test_a_name_without_an_answer_is_looked_up_once_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    names = Names(monkeypatch)

    async def main() -> None:
        lookups = HostLookups(2)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await lookups.addresses("slow.example.com", 443)
        assert names.asked == ["slow.example.com"]
        await lookups.addresses("example.com", 443)
        await lookups.addresses("example.com", 443)
        assert names.asked == ["slow.example.com", "example.com", "example.com"]
        waiting = asyncio.create_task(lookups.addresses("slow.example.com", 443))
        await asyncio.sleep(0)
        names.ended.set()
        assert [str(one) for one in await waiting] == ["fe80::1"]
        lookups.close()

    try:
        asyncio.run(main())
    finally:
        names.ended.set()
