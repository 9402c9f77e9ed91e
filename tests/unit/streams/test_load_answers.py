"""A worker answers requests to load deployments, whatever happens to these meanwhile."""

import asyncio
from pathlib import Path

import pytest

from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    DeployedWorkflow,
    DeploymentCreated,
    DeploymentRetired,
    LoadRequested,
)
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import AppNotLoaded
from headwater.streams.workflows import load_answers
from headwater.streams.workflows.host_process import HostCode
from headwater.streams.workflows.load_answers import LoadAnswers
from tests.fakes.deployments import MemoryDeployments, with_active_deployment


class Folders:
    """Notes which scratch folders are used and removed."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self.removed: list[str] = []
        self.installed, self.preparing = asyncio.Event(), asyncio.Event()
        self.installed.set()

    def is_installed(self, _: DeploymentCreated) -> bool:
        return self.installed.is_set()

    async def prepare(self, _: DeploymentCreated) -> None:
        self.preparing.set()
        await self.installed.wait()

    async def code_of(self, deployment: DeploymentCreated, scratch: str = "") -> HostCode:
        self.used.append(scratch or deployment.id)
        return HostCode(Path(), Path(), None)

    async def remove_scratch(self, name: str) -> None:
        self.removed.append(name)


def requested(log: MemoryDeployments, name: str = "dep_1") -> None:
    log.deployments.apply(LoadRequested(id=name, request=f"load {name}", at_ms=now_ms()))


def answered(
    log: MemoryDeployments, folders: Folders, loaded: bool | None = None
) -> dict[str, dict[str, str | None]]:
    async def answer() -> None:
        answers = LoadAnswers(log, folders, "one", ())  # type: ignore[arg-type]
        answers.answer(log.deployments, lambda _: loaded)
        await asyncio.gather(*answers._answering)

    asyncio.run(asyncio.wait_for(answer(), 20))
    return log.deployments.loads


def imports(monkeypatch: pytest.MonkeyPatch, error: str = "") -> None:
    async def declarations_of(*_: object, **__: object) -> None:
        if error:
            raise AppNotLoaded(error)

    monkeypatch.setattr(load_answers, "declarations_of", declarations_of)


def test_a_request_about_a_deployment_that_was_removed_meanwhile_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
):
    imports(monkeypatch)
    log = with_active_deployment("order")
    workflows = (DeployedWorkflow(name="order", kind="replay"),)
    log.deployments.apply(
        DeploymentCreated(
            id="dep_2", app="a", digest="", size=1, offset=0, workflows=workflows, by="", at_ms=1
        )
    )
    requested(log, "dep_2")
    requested(log)
    for stage in (CLOSED, REMOVED):
        log.deployments.apply(
            DeploymentRetired(id="dep_2", stage=stage, closing="c", by="", at_ms=1)
        )
    answers = answered(log, Folders())
    assert answers == {"load dep_2": {}, "load dep_1": {"one": ""}}


def test_the_temporary_host_has_a_scratch_folder_of_its_own_which_is_removed(
    monkeypatch: pytest.MonkeyPatch,
):
    imports(monkeypatch, "no module named needed")
    log, folders = with_active_deployment("order"), Folders()
    requested(log)
    assert answered(log, folders)["load dep_1"] == {"one": "no module named needed"}
    assert folders.used != ["dep_1"]
    assert folders.removed == folders.used


@pytest.mark.parametrize("loaded", [False, None])
def test_a_host_that_does_not_start_is_answered_at_once_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, loaded: bool | None
):
    imports(monkeypatch, "no module named needed")
    log = with_active_deployment("order")
    requested(log)
    answers = answered(log, Folders(), loaded)
    assert answers["load dep_1"] == {"one": "no module named needed"}


def test_a_worker_that_installs_packages_answers_that_at_once_and_again_after_that(
    monkeypatch: pytest.MonkeyPatch,
):
    imports(monkeypatch)
    log, folders = with_active_deployment("order"), Folders()
    folders.installed.clear()
    requested(log)

    async def answer() -> None:
        answers = LoadAnswers(log, folders, "one", ())  # type: ignore[arg-type]
        answers.answer(log.deployments, lambda _: None)
        await folders.preparing.wait()
        assert log.deployments.loads == {"load dep_1": {"one": None}}
        folders.installed.set()
        await asyncio.gather(*answers._answering)
        assert log.deployments.loads == {"load dep_1": {"one": ""}}

    asyncio.run(asyncio.wait_for(answer(), 60))
