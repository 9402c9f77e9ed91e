"""What Java has learnt of Kafka is used when it fits, and is no more than a convenience."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.kafka.aot_cache import make_aot_cache
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.jars import aot_cache, jars_directory, locked_jars


@pytest.fixture
def jars(scratch: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A directory with all jars and nothing learnt."""
    directory = scratch / f"jars of {request.node.name}"
    directory.mkdir()
    for jar in locked_jars():
        os.link(jars_directory() / jar.filename, directory / jar.filename)
    monkeypatch.setenv("HEADWATER_JARS", str(directory))
    return directory


@pytest.fixture
def broker(scratch: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    broker = EmbeddedKafka(scratch / f"kafka of {request.node.name}", port=0, report=print)
    yield broker
    broker.kill()


def java_of(broker: EmbeddedKafka) -> tuple[list[str], str]:
    """The command line of a broker, and what Java has said."""
    return psutil.Process(broker.pid).cmdline(), broker._output_file.read_text("utf-8")


@pytest.mark.soak
def test_it_is_learnt_once_and_used_by_each_start(jars: Path, broker: EmbeddedKafka):
    said: list[str] = []
    make_aot_cache(jars, said.append)
    make_aot_cache(jars, said.append)
    assert len(said) == 1
    assert sorted(path.name for path in jars.iterdir() if path.suffix != ".jar") == [
        aot_cache(jars).name
    ]

    broker.start()
    command, output = java_of(broker)
    assert f"-XX:AOTCache={aot_cache(jars)}" in command
    assert "[warning]" not in output
    assert "[error]" not in output


@pytest.mark.soak
def test_what_does_not_fit_is_passed_over(jars: Path, broker: EmbeddedKafka):
    aot_cache(jars).write_bytes(b"of another Java" * 100_000)
    broker.start()
    _, output = java_of(broker)
    assert "AOT" in output


def test_without_it_kafka_starts(jars: Path, broker: EmbeddedKafka):
    broker.start()
    command, _ = java_of(broker)
    assert not [flag for flag in command if "AOT" in flag]


def test_that_it_cannot_be_made_is_said_and_stops_nobody(
    jars: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_self: EmbeddedKafka) -> str:
        raise ProcessUnavailable("Kafka died while starting")

    monkeypatch.setattr(EmbeddedKafka, "start", refuse)
    said: list[str] = []
    make_aot_cache(jars, said.append)
    assert "Kafka died while starting" in said[-1]
    assert not [path for path in jars.iterdir() if path.suffix != ".jar"]
