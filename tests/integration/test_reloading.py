"""An app that changes while it runs: its host alone is started again, if its code can be loaded."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headwater.streams.engine.driver import Driver
from headwater.streams.workflows.host_process import HostOptions
from headwater.streams.workflows.host_supervisor import HostSupervisor
from headwater.streams.workflows.hosts import AppChanged, Hosts, Reloading, folder_of

ONE = """
from headwater import workflow

@workflow("one")
async def one(event, step): ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two apps, each a package."""
    for name in ("reloaded_one", "reloaded_two"):
        (tmp_path / name).mkdir()
        text = ONE.replace("one", name)
        (tmp_path / name / "__init__.py").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(act: Callable[[list[HostSupervisor], asyncio.Task[None]], Awaitable[None]]) -> None:
    async def acts() -> None:
        driver = Driver(partitions=1)
        hosts = Hosts(["reloaded_one", "reloaded_two"], driver, HostOptions(names_steps=True))
        await hosts.start()
        watching = asyncio.create_task(Reloading(hosts, list).run())
        try:
            async with asyncio.timeout(60):
                await act(hosts.app_hosts(), watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await hosts.stop()

    asyncio.run(acts())


def pid(host: HostSupervisor) -> int | None:
    return host.process.pid if host.process is not None else None


async def until(what: Callable[[], bool], file: Path, text: str) -> None:
    """Writes a file until something follows: whoever watches may not have begun yet."""
    while not what():
        file.write_text(text, "utf-8")  # noqa: ASYNC240, a few bytes
        for _ in range(20):
            if what():
                return
            await asyncio.sleep(0.1)


def test_a_change_starts_the_host_of_its_app_again_and_no_other(package: Path):
    async def act(hosts: list[HostSupervisor], watching: asyncio.Task[None]) -> None:
        one, two = hosts
        before = pid(one), pid(two)
        file = package / "reloaded_one/__init__.py"
        changed = file.read_text("utf-8") + "\n# a change\n"
        await until(lambda: pid(one) not in (None, before[0]), file, changed)
        assert pid(two) == before[1]
        assert not watching.done()

    play(act)


def test_code_that_cannot_be_loaded_leaves_the_old_one_at_work(
    package: Path, caplog: pytest.LogCaptureFixture
):
    async def act(hosts: list[HostSupervisor], watching: asyncio.Task[None]) -> None:
        before = pid(hosts[0])
        file = package / "reloaded_one/__init__.py"
        await until(lambda: "keeping the previous code" in caplog.text, file, "def broken(:\n")
        assert "SyntaxError" in caplog.text
        assert pid(hosts[0]) == before

    play(act)


def test_an_app_that_declares_something_else_needs_a_worker_that_starts_again(package: Path):
    async def act(_: list[HostSupervisor], watching: asyncio.Task[None]) -> None:
        file = package / "reloaded_one/__init__.py"
        await until(watching.done, file, ONE.replace("one", "another"))
        with pytest.raises(AppChanged, match="new workflows another; without reloaded_one"):
            watching.result()

    play(act)


def test_the_files_of_an_app_are_its_package_or_lie_beside_its_module(package: Path):
    (package / "alone.py").write_text(ONE, "utf-8")
    assert folder_of("reloaded_one:one") == package / "reloaded_one"
    assert folder_of("alone") == package
