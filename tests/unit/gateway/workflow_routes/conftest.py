"""One service for all of them, over scripted outcomes."""

from collections.abc import Iterator

import pytest

from headwater.gateway.api.workflows import WorkflowHooks
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply
from tests.unit.gateway.workflow_routes.workflow_requests import (
    Client,
    service,
)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Client, MemoryCommands]]:
    commands = MemoryCommands()
    with service(commands, WorkflowHooks()) as client:
        yield client, commands


@pytest.fixture
def client(running: tuple[Client, MemoryCommands]) -> Client:
    return running[0]


@pytest.fixture(autouse=True)
def commands(running: tuple[Client, MemoryCommands]) -> MemoryCommands:
    commands = running[1]
    commands.sent.clear()
    commands.ready = True
    commands.answer = lambda _: reply()
    return commands
