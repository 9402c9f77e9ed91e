"""Whose a request is, behind proxies and without."""

from ipaddress import ip_network
from typing import Any

import pytest

from headwater.gateway.api.request_scope import peer_resolver

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("client", "forwarded", "peer"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.1, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.1", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["nonsense, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("fd00::1", ["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", [], "2001:db8:1:2::/64"),
        ("::1", [], "::1"),
        ("testclient", [], "unknown"),
        (None, [], "unknown"),
    ],
)
def test_the_peer_is_the_last_address_that_is_no_proxy(
    client: str | None, forwarded: list[str], peer: str
) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope: Any = {"client": client and (client, 4711), "headers": headers}
    assert peer_resolver(PROXIES)(scope) == peer


def test_without_proxies_nobody_is_believed() -> None:
    scope: Any = {"client": ("10.0.0.1", 1), "headers": [(b"x-forwarded-for", b"192.0.2.1")]}
    assert peer_resolver([])(scope) == "10.0.0.1"
