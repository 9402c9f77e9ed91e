"""What starts workflows beside a worker: which rules are read, and who ends whom."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from headwater.gateway.cli import serving
from headwater.gateway.cli.starting import (
    RulesUnusable,
    check_rules,
    pipeline_rules,
    rules_of,
    rules_without_app,
    run_until_first_exit,
)
from headwater.gateway.cli.up import process_specs
from headwater.gateway.cli.work import _until_signalled
from headwater.gateway.settings.settings import Settings
from headwater.streams.code_host.apps import Declarations

RULE = """
[[rule]]
name = "review"
source = "terra"
type = "sleep"
workflow = "night-review"
mode = "start"
id = 'event.user_id'
"""


def written(path: Path, text: str) -> Settings:
    file = path / "rules.toml"
    file.write_text(text)
    return Settings(rules=str(file))


def test_without_a_file_there_are_no_rules():
    assert rules_of(Settings()) == ()


def test_the_rules_of_a_file(tmp_path: Path):
    settings = written(tmp_path, RULE)
    (rule,) = rules_of(settings)
    assert rule.workflow == "night-review"
    check_rules(settings, [rule], {"night-review"})
    assert rules_without_app([rule], Declarations(("night-review",))) == []
    assert rules_without_app([rule], Declarations()) == [rule]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RULE.replace("event.user_id", "user_id"), "rule review: id, line 1, column 1: undeclared"),
        ("[[rule]", "expected TOML, found"),
    ],
)
def test_rules_that_cannot_be_used_are_told_with_their_file(tmp_path: Path, text: str, told: str):
    settings = written(tmp_path, text)
    with pytest.raises(RulesUnusable) as caught:
        rules_of(settings)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(f"HEADWATER_RULES, {settings.rules}:\n")
    assert told in caught.value.message


def test_a_file_that_is_not_there():
    with pytest.raises(RulesUnusable, match=r"expected a file of rules, found: .*No such file"):
        rules_of(Settings(rules="nowhere/rules.toml"))


def test_a_workflow_that_the_app_does_not_have(tmp_path: Path):
    settings = written(tmp_path, RULE)
    with pytest.raises(RulesUnusable, match="expected workflow to be one of order; found 'night-"):
        check_rules(settings, rules_of(settings), {"order"})


def test_a_source_that_nobody_posts_as(tmp_path: Path):
    settings = written(tmp_path, RULE.replace('"terra"', '"tera"'))
    assert rules_of(settings)  # workers of workflows need not know the sources
    with pytest.raises(
        RulesUnusable, match=r"review: expected source to be one of .*terra; found 'tera'"
    ):
        pipeline_rules(settings)


def test_the_pipeline_of_a_system_gets_the_rules_and_so_does_its_worker_of_workflows():
    parts = process_specs(Settings(app="mine.workflows", rules="rules.toml"))
    rules = {part.name: part.env["HEADWATER_RULES"] for part in parts}
    assert rules["workflows"] == rules["pipeline"] == "rules.toml"


def test_the_first_error_ends_all_of_them():
    ended = []

    async def works() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("works")

    async def fails() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        asyncio.run(run_until_first_exit(works(), fails()))
    assert ended == ["works"]


def test_a_gateway_ends_when_a_check_fails(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        signalled = asyncio.Event()
        monkeypatch.setattr(serving.signal, "raise_signal", lambda _: signalled.set())

        async def passes() -> None:
            return

        async def fails() -> None:
            raise LookupError("rows of another project")

        async def waits() -> None:
            await asyncio.Event().wait()

        async def serves() -> None:
            await signalled.wait()

        with pytest.raises(LookupError, match="rows of another project"):
            await serving.serve_while_safe([waits(), passes(), fails()], serves())

    asyncio.run(scenario())


def test_what_has_nothing_to_do_ends_nobody():
    async def scene() -> None:
        done = asyncio.Event()

        async def nothing() -> None:
            return

        async def works() -> None:
            await asyncio.sleep(0)
            done.set()

        await run_until_first_exit(nothing(), works())
        assert done.is_set()

    asyncio.run(scene())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_further_signals_do_not_interrupt_an_orderly_stop(number: signal.Signals):
    """systemd signals all processes of a unit, and the parent of several signals them again."""
    stopped: list[str] = []

    async def works() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(600)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), number)
            # The handlers of both run before the loop comes back.
            for _ in range(100):
                await asyncio.sleep(0.001)
            stopped.append("in order")

    asyncio.run(_until_signalled(works()))
    assert stopped == ["in order"]
