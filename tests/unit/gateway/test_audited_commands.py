"""Commands that change something without the gateway have entries before and after they act."""

from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest

from headwater.gateway.cli.audited import Command, recorded
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.records import OperationAudited
from tests.unit.gateway.test_auditing import metadata

SKIP = Command("topics.skip", "topics skip", {"topic": "webhooks", "force": False, "more": None})


class Log:
    """Keeps entries, and stores no more than `room`."""

    def __init__(self, room: int = 2) -> None:
        self.entries: list[OperationAudited] = []
        self.room = room

    def append(self, entry: OperationAudited) -> None:
        if len(self.entries) >= self.room:
            raise BrokerUnavailable("no broker")
        self.entries.append(entry)


@contextmanager
def skipping(log: Log) -> Iterator[None]:
    with recorded(log.append, "shop", SKIP, lambda: 7):
        yield


def test_a_command_has_an_attempt_and_a_result():
    log = Log()
    with skipping(log):
        assert [entry.result for entry in log.entries] == ["attempted"]
    attempt, result = log.entries
    assert (result.result, result.action, result.resource, result.project_id) == (
        "success", "topics.skip", "headwater topics skip", "shop"
    )  # fmt: skip
    assert (result.key_id.partition(":")[0], result.at_ms) == ("cli", 7)
    stated = {"topic": "webhooks", "force": False, "lane": "cli"}
    assert metadata(attempt) == stated
    assert metadata(result) == stated | {"attempt": attempt.id}


def test_without_its_attempt_a_command_does_nothing():
    done = []
    with pytest.raises(click.ClickException, match="nothing was done"), skipping(Log(room=0)):
        done.append(1)
    assert done == []


def test_a_command_that_is_done_and_has_no_result_says_so():
    with pytest.raises(click.ClickException, match="was done, but"), skipping(Log(room=1)):
        pass


def test_a_command_that_fails_has_its_error(capsys: pytest.CaptureFixture[str]):
    log = Log()
    with pytest.raises(ZeroDivisionError), skipping(log):
        raise ZeroDivisionError("by zero")
    assert log.entries[1].result == "failure"
    assert metadata(log.entries[1])["error"] == "by zero"
    with pytest.raises(ZeroDivisionError), skipping(Log(room=1)):
        raise ZeroDivisionError
    assert "its failure is not in the audit log: no broker" in capsys.readouterr().err
