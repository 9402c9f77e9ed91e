"""The proxy that scenes of bad networks go through does what it says."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.fakes.proxy import Proxy

#: How long nothing has to come for it to be nothing.
NOTHING_S = 0.2


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(client,), daemon=True).start()

        def answer(client: socket.socket) -> None:
            with client:
                while data := client.recv(1024):
                    client.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"{host}:{port}"


@pytest.fixture
def proxy(echo: str) -> Iterator[Proxy]:
    with Proxy(lambda: echo) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def comes_nothing(client: socket.socket) -> bool:
    client.settimeout(NOTHING_S)
    try:
        return client.recv(1024) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def test_it_passes_everything_on(proxy: Proxy):
    with connect(proxy) as client:
        client.sendall(b"one")
        assert client.recv(1024) == b"one"


@pytest.mark.parametrize("way", [{"to_client": False}, {"to_server": False}, {}])
def test_what_is_held_arrives_when_the_network_is_whole_again(proxy: Proxy, way: dict[str, bool]):
    with connect(proxy) as client:
        client.sendall(b"one")
        assert client.recv(1024) == b"one"
        proxy.hold(**way)
        client.sendall(b"two")
        assert comes_nothing(client)
        proxy.heal()
        assert client.recv(1024) == b"two"


def test_nobody_reaches_the_server_while_the_network_is_cut(proxy: Proxy):
    proxy.hold()
    with connect(proxy) as client:
        client.sendall(b"one")
        assert comes_nothing(client)
        proxy.heal()
        assert client.recv(1024) == b"one"


def test_both_sides_learn_of_a_connection_that_is_dropped(proxy: Proxy):
    with connect(proxy) as client:
        client.sendall(b"one")
        assert client.recv(1024) == b"one"
        proxy.drop()
        assert client.recv(1024) == b""


def test_the_client_of_a_half_open_connection_learns_nothing(proxy: Proxy):
    with connect(proxy) as client:
        client.sendall(b"one")
        assert client.recv(1024) == b"one"
        proxy.drop(half_open=True)
        client.sendall(b"two")
        assert comes_nothing(client)
    with connect(proxy) as another:
        another.sendall(b"three")
        assert another.recv(1024) == b"three"
