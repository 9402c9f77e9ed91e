"""Code that is deployed while workers run: runs stay on theirs, whoever is killed meanwhile."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headwater.processors.code.engine import ReplayEngine
from headwater.processors.deployments import artifact_of
from headwater.schemas.deployments import (
    FAILED,
    INSTALLED,
    REQUESTED,
    DeployedWorkflow,
    DeploymentCreated,
    EnvironmentReported,
    LoadRequested,
)
from headwater.schemas.failures import EVENT_ALREADY_RECEIVED, INSTANCE_EXISTS
from headwater.schemas.history import RestartRun, RunStarted, SendEvent, StartRun
from headwater.streams.clock import now_ms
from headwater.streams.code_host.artifacts import ArtifactInvalid
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.code_folders import ArtifactFolders, CodeFolders
from headwater.streams.workflows.deployed_code import DeployedCode
from headwater.streams.workflows.deployment_log import DeploymentLog
from headwater.streams.workflows.environments import EnvironmentPolicy
from headwater.streams.workflows.worker import WorkflowWorker
from headwater.streams.workflows.worker_options import Pace
from tests.deployed_apps import APP, Deployer, code_of, deploying
from tests.e2e.workflow_system import Sender, Story, WorkflowSystem, opened, play
from tests.waiting import until
from tests.wheels import build_wheel
from tests.workflow_parts import a_client, a_worker, running, started


@pytest.fixture(scope="module")
def shared(scratch: Path) -> Iterator[WorkflowSystem]:
    directory = scratch / "deployed-code"
    directory.mkdir()
    with opened(WorkflowSystem(directory)) as system:
        yield system


@pytest.fixture
def system(shared: WorkflowSystem) -> Iterator[WorkflowSystem]:
    """The topics are those of all tests: each has instances and code of its own."""
    yield shared
    for name in list(shared.parts):
        shared.kill(name)
    shared.settings.clear()


def folders(log: DeploymentLog, state: Path) -> CodeFolders:
    return CodeFolders(log, state, EnvironmentPolicy())


def orders(name: str) -> list[str]:
    """Instances, more than partitions: each has some."""
    return [f"order/{name}-{n}" for n in range(12)]


async def create(client: Sender, *keys: str) -> None:
    async def one(key: str) -> None:
        workflow, _, name = key.partition("/")
        reply = await client.send(workflow, name, StartRun("null"))
        # It is sent again until a worker is there, and may have been carried out before.
        assert reply.code in {"", INSTANCE_EXISTS}, reply

    await asyncio.gather(*map(one, keys))


async def go(client: Sender, *keys: str, number: int = 0) -> None:
    async def one(key: str) -> None:
        workflow, _, name = key.partition("/")
        event = SendEvent(f"{key}-{number}", "go", "null")
        reply = await client.send(workflow, name, event)
        assert reply.code in {"", EVENT_ALREADY_RECEIVED}, reply

    await asyncio.gather(*map(one, keys))


def done(story: Story, *keys: str) -> int:
    """How many steps of these are completed."""
    return sum(instance in keys for instance, _, _ in story.completions())


def began_on(story: Story, key: str) -> list[str | None]:
    """The deployments that the runs of an instance began on."""
    started = [
        event
        for record in story.records(key)
        for event in record.events
        if isinstance(event, RunStarted)
    ]
    return [item.deployment.name if item.deployment else None for item in started]


def host_of(system: WorkflowSystem, worker: str, deployment: str) -> int | None:
    """The process id of a worker's host of a deployment: the one that works in its folder."""
    parent = system.parts[worker].pid
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                folder = (stat.parent / "cwd").readlink()
                if folder.name == deployment:
                    return int(stat.parent.name)
    return None


async def kill_host(system: WorkflowSystem, story: Story, worker: str, deployment: str) -> None:
    await system.until(
        story, lambda: host_of(system, worker, deployment) is not None, f"a host of {deployment}"
    )
    os.kill(host_of(system, worker, deployment) or 0, signal.SIGKILL)


def test_runs_stay_on_their_code_whoever_is_killed(system: WorkflowSystem, tmp_path: Path):
    old, new = orders("old"), orders("new")

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            first = await deployer.release(code_of("first"))
            system.start("one")
            await create(client, *old)
            await system.until(story, lambda: done(story, *old) == len(old), "their first steps")
            second = await deployer.release(code_of("second"))
            await create(client, *new)
            await kill_host(system, story, "one", first)
            await go(client, *old[:6])
            await system.until(story, lambda: done(story, *old) > 2 * len(old), "some steps")
            await kill_host(system, story, "one", first)
            system.kill("one")
            # One that has nothing: it fetches what the runs need by itself.
            system.settings["HEADWATER_DATA_DIR"] = str(tmp_path / "elsewhere")
            system.start("two")
            await go(client, *old[6:], *new)
            await system.until(story, lambda: done(story, *new) > 3 * len(new), "some steps of new")
            await kill_host(system, story, "two", second)
            await kill_host(system, story, "two", first)
            every = old + new
            await system.until(story, lambda: all(map(story.ended, every)), "their ends")
            for keys, version, deployment in ((old, "first", first), (new, "second", second)):
                assert {repr(story.output(key)) for key in keys} == {repr([version] * 22)}
                assert [began_on(story, key) for key in keys] == [[deployment]] * len(keys)
            folders = {path.name for path in (tmp_path / "elsewhere/state/deployments").iterdir()}
            assert {first, second} <= folders
            # What begins again does so on what is active.
            assert (await client.send("order", "old-0", RestartRun())).code == ""
            await system.until(story, lambda: not story.ended("order/old-0"), "another run")
            assert began_on(story, "order/old-0") == [first, second]

    play(system, act)


def test_a_run_that_follows_the_code_goes_on_with_what_is_active(system: WorkflowSystem):
    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            await deployer.release(code_of("followed"))
            system.start("one")
            keys = [f"poll/p{n}" for n in range(8)]
            await create(client, *keys)
            await go(client, *keys)
            await system.until(story, lambda: done(story, *keys) == len(keys), "their first steps")
            await deployer.release(code_of("follower"))
            # Its owners hear of it with the next command that begins a run, or by themselves.
            await create(client, *orders("heard"))
            await go(client, *keys, number=1)
            await system.until(story, lambda: all(map(story.ended, keys)), "their ends")
            assert {repr(story.output(key)) for key in keys} == {repr(["followed", "follower"])}
            assert {item for key in keys for item in began_on(story, key)} == {None}

    play(system, act)


def test_a_limit_is_that_of_what_is_active_also_for_those_who_wait(system: WorkflowSystem):
    keys = orders("limited")

    def begun(story: Story) -> set[str]:
        return {instance for instance, _, _ in story.completions() if instance in keys}

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            await deployer.release(code_of("two"), limit=2)
            system.start("one")
            await create(client, *keys)
            await system.until(story, lambda: len(begun(story)) == 2, "those who have a slot")
            await deployer.release(code_of("five"), limit=5)
            await system.until(story, lambda: len(begun(story)) == 5, "those who have one now")
            await go(client, *keys)
            await system.until(story, lambda: all(map(story.ended, keys)), "their ends")
            held = [most for key, most in story.slots_held.items() if key.startswith("order/")]
            assert held == [5]

    play(system, act)


def test_a_limit_is_that_of_its_deployment_where_no_other_has_the_workflow(system: WorkflowSystem):
    limited = """
from headwater import workflow

@workflow("packing", concurrency=2)
async def packing(event, step):
    await step.do("begin", str)
    await step.wait_for_event("go", type="go", timeout="1 hour")
"""
    keys = ["packing/a", "packing/b", "packing/c"]

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            packing = DeployedWorkflow(name="packing", kind=ReplayEngine.kind)
            old = await deployer.deploy(limited, limit=2, workflows=(packing,))
            await deployer.release(code_of("without packing"))
            on = artifact_of((await deployer.log.catch_up()).by_id[old])
            system.start("one")
            for key in keys:
                name = key.partition("/")[2]
                begun = await client.send("packing", name, StartRun("null", deployment=on))
                assert begun.code in {"", INSTANCE_EXISTS}, begun
            await system.until(story, lambda: done(story, *keys) == 2, "two to begin")
            for key in keys:
                await go(client, key)
            await system.until(story, lambda: all(map(story.ended, keys)), "their ends")

    play(system, act)


async def activate_by_force(deployer: Deployer, deployment: str, reason: str) -> None:
    """Activate what a worker cannot load, as it answers for this reason."""
    request = LoadRequested(id=deployment, request=f"load {deployment}", at_ms=now_ms())
    await deployer.log.write(request)
    loads = (await deployer.log.catch_up()).loads[request.request]
    async with asyncio.timeout(120):
        while not loads:
            await asyncio.sleep(0.1)
            await deployer.log.catch_up()
    ((worker, error),) = loads.items()
    assert worker.startswith("workflows ")
    assert reason in error
    await deployer.activate(deployment)


def test_a_deployment_that_cannot_be_loaded_holds_up_its_own_runs_alone(
    system: WorkflowSystem, tmp_path: Path
):
    late, sound = orders("late"), orders("sound")
    needed = tmp_path / "needed"
    refuses = f"""
from pathlib import Path
if not Path({str(needed)!r}).exists():
    raise RuntimeError("it needs what is not here")
"""

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            broken = await deployer.deploy(refuses + code_of("late"))
            system.start("one")
            await activate_by_force(deployer, broken, "it needs what is not here")
            await create(client, *late)
            cannot = f"the code host of {APP} of {broken} cannot be started"
            for words in ("it needs what", cannot):
                await system.until(story, lambda: words in system.log("one"), words)  # noqa: B023
            await deployer.release(code_of("sound"))
            await create(client, *sound)
            await go(client, *late, *sound)
            await system.until(
                story, lambda: all(map(story.ended, sound)), "the ends of the others"
            )
            assert done(story, *late) == 0
            needed.touch()
            await system.until(story, lambda: all(map(story.ended, late)), "their ends")
            assert {repr(story.output(key)) for key in late} == {repr(["late"] * 22)}

    play(system, act)


def test_a_deployment_whose_packages_cannot_be_installed_holds_up_its_own_runs_alone(
    system: WorkflowSystem, tmp_path: Path
):
    waiting, others = orders("priced"), orders("unpriced")
    wheels, elsewhere = tmp_path / "wheels", tmp_path / "elsewhere"
    wheels.mkdir()
    line = build_wheel(elsewhere, "prices", "1.0", {"prices.py": "ALL = 'all'"})
    system.settings["HEADWATER_WHEELS"] = str(wheels)

    async def act(story: Story, client: Sender) -> None:
        async with deploying(system.bootstrap) as deployer:
            code = "import prices\n" + code_of("priced")
            priced = await deployer.deploy(code, requirements=line)
            await deployer.activate(priced)
            system.start("one")
            await create(client, *waiting)
            cannot = f"runs of {priced} wait: its requirements cannot be installed here"
            for words in (cannot, "prices==1.0"):
                await system.until(story, lambda: words in system.log("one"), words)  # noqa: B023
            await deployer.release(code_of("after it"))
            await create(client, *others)
            await go(client, *waiting, *others)
            await system.until(story, lambda: all(map(story.ended, others)), "ends of the others")
            assert done(story, *waiting) == 0
            assert system.log("one").count(cannot) == 1
            states = (await deployer.log.catch_up()).environments[priced]
            assert [report.state for report in states.values()] == [FAILED]
            next(elsewhere.iterdir()).rename(wheels / "prices-1.0-py3-none-any.whl")
            await deployer.log.write(EnvironmentReported(id=priced, state=REQUESTED, at_ms=0))
            await system.until(story, lambda: all(map(story.ended, waiting)), "their ends")
            assert {repr(story.output(key)) for key in waiting} == {repr(["priced"] * 22)}
            states = (await deployer.log.catch_up()).environments[priced]
            assert [report.state for report in states.values()] == [INSTALLED]

    play(system, act)


def test_a_host_that_nobody_needs_is_ended_and_comes_back(topics: str, tmp_path: Path):
    def begun(worker: WorkflowWorker) -> set[str]:
        return {item for item in worker.threads_held() if APP in item}

    async def scenario() -> None:
        log = DeploymentLog(cluster=Cluster(topics), client_id="tests-worker")
        code = DeployedCode(log, folders(log, tmp_path), follow_s=0.1, idle_s=0.5)
        worker = a_worker(topics, apps=[], deployed=code, pace=Pace(idle_ms=100))
        async with deploying(topics) as deployer, started(a_client(topics)) as client:
            sender = Sender(client)
            first = await deployer.release(code_of("first"))
            async with running(worker):
                await sender.ready()
                await create(sender, "order/idle")
                second = await deployer.release(code_of("second"))
                await until(lambda: begun(worker) == {f"{APP} of {second}"})
                await go(sender, "order/idle")
                both = {f"{APP} of {item}" for item in (first, second)}
                await until(lambda: begun(worker) == both)
                await until(lambda: begun(worker) == {f"{APP} of {second}"})

    asyncio.run(scenario())


HOLDS = """
import asyncio
from pathlib import Path

from headwater import workflow

@workflow("hold")
async def hold(event, step):
    async def wait():
        while not Path(event.payload).exists():
            await asyncio.sleep(0.05)
        return {said!r}

    return await step.do("wait", wait)
"""


def test_hosts_are_no_more_than_there_may_be_and_work_waits_for_its_turn(
    topics: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    hold = (DeployedWorkflow(name="hold", kind=ReplayEngine.kind),)

    def there(worker: WorkflowWorker) -> set[str]:
        return {item.rpartition(" ")[2] for item in worker.threads_held() if APP in item}

    async def scenario() -> None:
        log = DeploymentLog(cluster=Cluster(topics), client_id="tests-worker")
        code = DeployedCode(log, folders(log, tmp_path), follow_s=0.1, hosts_max=1)
        worker = a_worker(topics, apps=[], deployed=code, pace=Pace(idle_ms=100))
        async with deploying(topics) as deployer, started(a_client(topics)) as client:
            sender = Sender(client)
            busy, late, active = [
                await deployer.deploy(HOLDS.format(said=said), workflows=hold)
                for said in ("busy", "late", "active")
            ]
            await deployer.activate(active)
            known = (await deployer.log.catch_up()).by_id

            async with running(worker):
                await sender.ready()
                ends = await held(sender, "busy", known[busy], tmp_path)
                await until(lambda: "busy" in in_hand(worker))
                late_ends = await held(sender, "late", known[late], tmp_path)
                await until(lambda: f"runs of {late} wait: 1 hosts" in caplog.text)
                # That of the active one is beside them.
                (await held(sender, "now", known[active], tmp_path)).touch()
                await until(lambda: "now" not in in_hand(worker))
                late_ends.touch()
                ends.touch()
                await until(lambda: there(worker) == {late, active} and not in_hand(worker))
                # The way back, for what was ended to make room.
                (await held(sender, "again", known[busy], tmp_path)).touch()
                await until(lambda: there(worker) == {busy, active} and not in_hand(worker))
                assert caplog.text.count("wait: 1 hosts") == 1

    asyncio.run(scenario())


async def held(sender: Sender, name: str, on: DeploymentCreated, folder: Path) -> Path:
    """Begins a run that ends when a file is there; gives that."""
    ends = folder / f"{name} ends"
    command = StartRun(json.dumps(str(ends)), deployment=artifact_of(on))
    reply = await sender.send("hold", name, command)
    assert reply.code in {"", INSTANCE_EXISTS}
    return ends


def in_hand(worker: WorkflowWorker) -> set[str]:
    """The instances whose run has not ended."""
    return {
        run.instance_id
        for owner in worker._owners()
        for _, run in owner.instances.open_runs()
        if run.workflow == "hold"
    }


def test_what_a_killed_worker_had_begun_to_unpack_is_removed(topics: str, tmp_path: Path):
    begun, left = tmp_path / ".unpacking-now", tmp_path / ".unpacking-long-ago"
    for item in (begun, left):
        item.mkdir()
        (item / "shop.py").touch()
    os.utime(left, (0, 0))

    async def scenario() -> None:
        async with deploying(topics) as deployer:
            name = await deployer.deploy(code_of("sound"))
            known = (await deployer.log.catch_up()).by_id
            await ArtifactFolders(deployer.log, tmp_path).folder_of(known[name])

    asyncio.run(scenario())
    assert begun.exists()
    assert not left.exists()


def test_what_is_deployed_runs_by_ticks_as_apps_do(topics: str, tmp_path: Path):
    async def scenario() -> None:
        log = DeploymentLog(cluster=Cluster(topics), client_id="tests-worker")
        worker = a_worker(
            topics, apps=[], deployed=DeployedCode(log, folders(log, tmp_path)), ticked=True
        )
        async with deploying(topics) as deployer, started(a_client(topics)) as client:
            sender = Sender(client)
            await deployer.release(code_of("ticked"))
            async with running(worker):
                await sender.ready()
                keys = [f"order/ticked-{n}" for n in range(12)]
                await create(sender, *keys)
                provided = []
                async with asyncio.timeout(60):
                    while sum(provided) < len(keys):
                        done = await worker.tick(max_instances=5, max_steps=3)
                        assert done.steps <= 3
                        provided.append(done.steps)

    asyncio.run(scenario())


def test_workflows_of_an_app_whose_runs_begin_on_a_deployment_are_named(
    topics: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    # The first of them follows the code of the app, the last is of the deployment alone.
    named = (("ten", True), ("waiting", False), ("child", False), ("order", False))
    workflows = tuple(
        DeployedWorkflow(name=name, kind=ReplayEngine.kind, latest=latest) for name, latest in named
    )

    async def scenario() -> None:
        log = DeploymentLog(cluster=Cluster(topics), client_id="tests-worker")
        worker = a_worker(topics, deployed=DeployedCode(log, folders(log, tmp_path), follow_s=0.1))
        async with deploying(topics) as deployer, running(worker):
            name = await deployer.deploy(code_of("set aside"), workflows=workflows)
            await deployer.activate(name)
            await until(lambda: f"new runs of child, waiting start on {name}, the" in caplog.text)

    asyncio.run(scenario())


def test_an_artifact_is_unpacked_whole_or_not_at_all(topics: str, tmp_path: Path):
    async def scenario() -> None:
        async with deploying(topics) as deployer:
            sound = await deployer.deploy(code_of("sound"))
            torn = await deployer.deploy(code_of("torn"), as_it_is=b"PK, and then nothing")
            known = (await deployer.log.catch_up()).by_id
            several = [ArtifactFolders(deployer.log, tmp_path) for _ in range(4)]
            result = await asyncio.gather(*(item.folder_of(known[sound]) for item in several))
            assert set(result) == {tmp_path / sound}
            assert (tmp_path / sound / f"{APP}.py").read_text() == code_of("sound")
            for entry in several:
                with pytest.raises(ArtifactInvalid):
                    await entry.folder_of(known[torn])

    asyncio.run(scenario())
    (left,) = (path for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert [path.name for path in left.iterdir()] == [f"{APP}.py"]
