"""Ports that other programs have, before `headwater up` starts anything."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headwater.gateway.cli.up import _check_ports
from headwater.gateway.settings.settings import Settings
from headwater.schemas.errors import ProcessUnavailable


@pytest.fixture
def taken() -> Iterator[list[int]]:
    with ExitStack() as exits:
        servers = [exits.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        yield [server.getsockname()[1] for server in servers]


def test_all_taken_ports_are_named_at_once(taken: list[int]) -> None:
    gateway, kafka, postgres = taken
    with pytest.raises(ProcessUnavailable) as refused:
        _check_ports(Settings(port=gateway, kafka_port=kafka, postgres_port=postgres))
    message = refused.value.message
    assert f"cannot listen on 127.0.0.1:{gateway}" in message
    assert f"--kafka-port ({kafka} is taken), --postgres-port ({postgres} is taken)" in message


def test_ports_of_servers_elsewhere_do_not_matter(taken: list[int]) -> None:
    _, kafka, postgres = taken
    _check_ports(
        Settings(
            port=0,
            kafka="kafka:9092",
            kafka_port=kafka,
            postgres="postgresql://db",
            postgres_port=postgres,
        )
    )
