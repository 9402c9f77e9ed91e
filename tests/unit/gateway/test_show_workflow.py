"""The demo's workflow waits for its worker, however slowly that starts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headwater.gateway.cli import demo
from headwater.gateway.cli.demo import DayFailed, WorkflowShow
from headwater.gateway.settings.environment import load_settings
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError, Overloaded
from headwater.schemas.failures import INSTANCE_EXISTS, INVALID_PARAMS
from headwater.schemas.history import Command, ReplySent
from headwater.streams.workflows.client import OutcomeUnknown

NO_WORKER = OutcomeUnknown("expected a worker, found that none runs", has_worker=False)


class Client:
    """Answers, or raises, one after the other; the last one again and again."""

    def __init__(self, *answers: HeadwaterError | str) -> None:
        self._answers = list(answers)
        self.sent = 0

    async def send(self, _workflow: str, _instance_id: str, _command: Command) -> ReplySent:
        self.sent += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, HeadwaterError):
            raise answer
        return ReplySent(
            command_id="command", code=answer, message="the reason", status="", run_number=1,
            partition=0, position=0,
        )  # fmt: skip


def begin(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    show = WorkflowShow(load_settings(), int, lambda: "id")

    @asynccontextmanager
    async def connected(_show: WorkflowShow) -> AsyncIterator[Client]:
        yield client

    monkeypatch.setattr(WorkflowShow, "_client", connected)
    monkeypatch.setattr(demo, "_SENT_AGAIN_AFTER_S", 0.0)
    show.begin()


def test_it_waits_for_a_worker_and_for_kafka(monkeypatch: pytest.MonkeyPatch):
    stalled = BrokerUnavailable("expected Kafka to accept commands, found that it stalls")
    busy = Overloaded("expected fewer commands")
    client = Client(*[NO_WORKER] * 20, stalled, busy, "")
    begin(monkeypatch, client)
    assert client.sent == 23


def test_an_earlier_attempt_may_have_succeeded(monkeypatch: pytest.MonkeyPatch):
    begin(monkeypatch, Client(NO_WORKER, INSTANCE_EXISTS))


def test_a_refusal_is_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DayFailed, match=f"{INVALID_PARAMS}: the reason"):
        begin(monkeypatch, Client(INVALID_PARAMS))


def test_at_the_end_it_says_what_it_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "_WORKFLOW_TIMEOUT_S", 0.05)
    with pytest.raises(DayFailed, match=r"no answer within 0 s.*found that none runs.*logs"):
        begin(monkeypatch, Client(NO_WORKER))
