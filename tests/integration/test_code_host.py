"""Hosts in real processes: what authors' code does there harms nobody else.

Each test ends with every instance ended, in the state of the owner that a worker would have.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.processors.runs.host_messages import Evict
from headwater.schemas.statuses import RunStatus
from headwater.streams.code_host.apps import AppNotLoaded
from headwater.streams.workflows.host_process import HostCode, HostProcess, declarations_of
from tests.integration.hosting import APPS, World, drive
from tests.waiting import wait_until


def test_steps_of_all_kinds_run():
    async def scenario(world: World) -> None:
        key = world.create("all-kinds")
        await world.run_to_the_end(key)
        assert world.output(key) == [
            "soon",
            "later",
            "in a thread",
            "later",
            ["later", "later"],
            None,
            "later",
            "later",
        ]
        assert world.logs(key) == ["from the body", "from a thread"]
        assert not world.gone

    drive(scenario)


def test_code_of_authors_sees_the_variables_that_are_named_and_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = tmp_path / "seen"
    (tmp_path / "curious.py").write_text(
        "import os\nfrom pathlib import Path\nfrom headwater import workflow\n"
        "@workflow('curious')\nasync def curious(event, step): ...\n"
        f"Path({str(seen)!r}).write_text(chr(10).join(os.environ))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    credentials = {
        *("HEADWATER_ADMIN_KEY", "HEADWATER_POSTGRES", "SHOP_SECRET", "AWS_SECRET_ACCESS_KEY"),
        *("PGPASSWORD", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET"),
    }
    for name in (*credentials, "STRIPE_KEY", "SENTRY_DSN", "SENTRY_RELEASE"):
        monkeypatch.setenv(name, "a secret")
    passed = ["STRIPE_KEY", "SENTRY_*"]
    declared = asyncio.run(declarations_of("curious", passed=passed))
    assert list(declared.workflows) == ["curious"]
    names = set(seen.read_text().splitlines())
    assert {"PATH", "PYTHONPATH", "LC_ALL", "STRIPE_KEY", "SENTRY_DSN", "SENTRY_RELEASE"} <= names
    assert not credentials & names
    asyncio.run(declarations_of("curious", passed=["*"]))
    assert not [name for name in seen.read_text().splitlines() if name.startswith("HEADWATER_")]


def test_an_app_that_misses_a_variable_is_told_how_it_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "needy.py").write_text("import os\nKEY = os.environ['STRIPE_KEY']\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("STRIPE_KEY", "what the author needs")
    with pytest.raises(AppNotLoaded) as raised:
        asyncio.run(declarations_of("needy"))
    assert raised.value.message.endswith(
        "\nApps do not see STRIPE_KEY: HEADWATER_APP_ENVIRONMENT=STRIPE_KEY passes it on."
    )


def test_a_host_that_was_suspended_begins_nothing_that_it_has_to_forget(tmp_path: Path):
    async def scenario(world: World) -> None:
        before = world.create("quick")
        await world.run_to_the_end(before)
        os.kill(world.host.pid, signal.SIGSTOP)
        marks = [tmp_path / str(number) for number in range(3)]
        for mark in marks:
            # A turn each, so that a frame each waits in the pipe.
            kept = world.create("leaves-a-mark", str(mark))
            world.turn()
        world.host.send([Evict(number) for number in world.owner.activations()[:-1]])
        os.kill(world.host.pid, signal.SIGCONT)
        await world.run_to_the_end(kept)
        assert [mark.exists() for mark in marks] == [False, False, True]

    drive(scenario)


def test_a_host_has_caught_up_when_it_has_done_what_it_was_sent():
    async def scenario(world: World) -> None:
        os.kill(world.host.pid, signal.SIGSTOP)
        key = world.create("quick")
        world.turn()
        caught_up = asyncio.create_task(world.host.caught_up())
        # Nothing to wait for: what must not come, does not.
        assert not (await asyncio.wait([caught_up], timeout=0.2))[0]
        os.kill(world.host.pid, signal.SIGCONT)
        await caught_up
        await world.run_to_the_end(key)
        os.kill(world.host.pid, signal.SIGSTOP)
        caught_up = asyncio.create_task(world.host.caught_up())
        await asyncio.sleep(0)
        os.kill(world.host.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            await caught_up
            await world.host.caught_up()

    drive(scenario)


def test_a_callback_that_blocks_a_thread_stops_no_other_instance(tmp_path: Path):
    go = tmp_path / "go"

    async def scenario(world: World) -> None:
        slow = [world.create("meets-in-threads", str(go)) for _ in range(4)]
        world.turn()
        quick = [world.create("quick") for _ in range(50)]
        await world.run_to_the_end(*quick)
        assert not any(world.run(key).ended for key in slow)
        go.touch()
        await world.run_to_the_end(*slow)

    drive(scenario)


@pytest.mark.parametrize(
    ("workflow", "reason"),
    [
        ("blocks-the-loop", "the code host was stuck for 0.8 s at "),
        ("exits-in-a-step", "the code host ended with exit code 1"),
        ("crashes-in-a-thread", "the code host was killed by SIGSEGV at "),
    ],
)
def test_a_step_that_ends_its_host_has_failed_once(tmp_path: Path, workflow: str, reason: str):
    async def scenario(world: World) -> None:
        bystanders = [world.create("asks-first") for _ in range(5)]
        await world.run_until(lambda: all(world.run(key).open for key in bystanders))
        guilty = world.create(workflow, str(tmp_path / "once"))
        await world.run_to_the_end(guilty, *bystanders)
        (removed,) = world.gone
        assert removed.reason.startswith(reason)
        assert removed.turn is None
        assert world.output(guilty) == "at last"
        (entry,) = world.run(guilty).entries.values()
        assert entry.attempts == 2
        assert [world.output(key) for key in bystanders] == ["soon"] * 5

    drive(scenario, stall_s=0.8)


@pytest.mark.parametrize(
    ("workflow", "how"),
    [
        ("blocks-in-its-body", "was stuck for 0.8 s"),
        ("dies-in-its-body", "was killed by SIGSEGV"),
    ],
)
def test_a_body_that_ends_its_host_is_blamed_alone(tmp_path: Path, workflow: str, how: str):
    async def scenario(world: World) -> None:
        slow = world.create("blocks-in-a-thread")
        bystanders = [world.create("asks-first") for _ in range(5)]
        guilty = world.create(workflow, str(tmp_path / "once"))
        await world.run_to_the_end(guilty, slow, *bystanders)
        (removed,) = world.gone
        assert removed.turn is not None
        assert f"{how} at {APPS}/misbehaving.py, line " in removed.reason
        assert world.output(guilty) == "at last"
        assert world.logs(guilty) == [f"{removed.reason}; retried in 1 s"]
        assert [world.output(key) for key in bystanders] == ["soon"] * 5
        assert world.output(slow) == "slow"

    drive(scenario, stall_s=0.8)


@pytest.mark.parametrize("workflow", ["always-blocks", "holds-the-interpreter"])
def test_a_body_that_always_blocks_is_given_up(workflow: str):
    async def scenario(world: World) -> None:
        guilty, other = world.create(workflow), world.create("quick")
        await world.run_to_the_end(guilty, other)
        name, message = world.failure(guilty)
        assert name == "HostLostError"
        assert message.startswith(f"the code host was stuck for 0.4 s at {APPS}/misbehaving.py")
        assert message.endswith("do what takes long, blocks or may crash inside step.do")
        assert world.output(other) == "soon"

    drive(scenario, stall_s=0.4)


@pytest.mark.parametrize(
    "where",
    ["body", "branch", "task", "interrupted task", "step", "thread", "task of a step"],
)
def test_code_that_wants_to_exit_ends_itself_only(where: str):
    async def scenario(world: World) -> None:
        other, guilty = world.create("asks-first"), world.create("wants-to-exit", where)
        await world.run_to_the_end(other, guilty)
        name, _ = world.failure(guilty)
        names = {"branch": "JoinError", "interrupted task": "KeyboardInterrupt"}
        assert name == names.get(where, "SystemExit")
        assert world.output(other) == "soon"
        assert not world.gone

    drive(scenario)


def test_a_host_says_what_it_has_done_before_it_does_more():
    async def scenario(world: World) -> None:
        # More than a frame, and both are there when it hears: what is in the second stops it.
        keys = [world.create("quick") for _ in range(300)]
        world.create("blocks-at-once")
        os.kill(world.host.pid, signal.SIGSTOP)
        world.turn()
        os.kill(world.host.pid, signal.SIGCONT)
        await world.run_until(lambda: sum(bool(world.run(key).entries) for key in keys) >= 256)
        assert not world.gone
        await world.run_until(lambda: bool(world.gone))

    drive(scenario, stall_s=0.4)


def test_the_work_of_a_loser_holds_nobody_in_memory():
    async def scenario(world: World) -> None:
        key = world.create("races")
        hand = world.owner.instances.find(key)
        assert hand is not None
        await world.run_until(lambda: "first/slow/work" in hand.attempts)
        await world.run_until(lambda: hand.run.status is RunStatus.WAITING)
        assert hand.may_be_evicted()

    drive(scenario)


def test_what_cannot_be_sent_ends_its_run_only():
    async def scenario(world: World) -> None:
        keys = [world.create("quick") for _ in range(40)]
        guilty = world.create("cannot-be-sent")
        keys += [world.create("quick") for _ in range(40)]
        await world.run_to_the_end(guilty, *keys)
        name, message = world.failure(guilty)
        assert (name, "surrogates not allowed" in message) == ("UnserialisableError", True)
        assert {world.output(key) for key in keys} == {"soon"}
        assert not world.gone

    drive(scenario)


def test_large_results_pass():
    async def scenario(world: World) -> None:
        keys = [world.create("large") for _ in range(12)]
        await world.run_to_the_end(*keys)
        assert {world.output(key) for key in keys} == {2 * (1024 * 1024 - 100)}

    drive(scenario)


def test_a_host_that_is_not_heard_for_a_while_stops_hearing_and_loses_nothing():
    async def scenario(world: World) -> None:
        world.host.pause_reading()
        keys = [world.create("large") for _ in range(12)]
        while not await _is_stuck(world):
            keys.append(world.create("quick", "x" * 1_000_000))
            assert len(keys) < 100, "the host hears whatever comes"
            world.turn()
        world.host.resume_reading()
        await world.run_to_the_end(*keys)
        assert not world.gone

    drive(scenario)


async def _is_stuck(world: World) -> bool:
    """Whether the host hears nothing for a while."""
    for _ in range(30):
        if not world.host.full:
            return False
        await asyncio.sleep(0.01)
    return True


def test_a_program_that_a_step_leaves_behind_hides_no_death():
    async def scenario(world: World) -> None:
        key = world.create("leaves-a-program")
        await world.run_until(lambda: bool(world.run(key).entries))
        os.kill(world.host.pid, signal.SIGKILL)
        await world.run_to_the_end(key)
        (removed,) = world.gone
        assert removed.reason.startswith("the code host was killed by SIGKILL")

    drive(scenario)


def test_a_host_whose_pipe_is_closed_by_its_code_is_replaced():
    async def scenario(world: World) -> None:
        key = world.create("closes-everything")
        await world.run_to_the_end(key)
        assert world.failure(key)[0] == "HostLostError"
        assert len(world.gone) == 1

    drive(scenario)


def test_a_host_whose_code_writes_to_its_pipe_is_replaced(tmp_path: Path):
    async def scenario(world: World) -> None:
        key = world.create("writes-to-every-pipe", str(tmp_path / "mark"))
        await world.run_to_the_end(key)
        assert world.output(key) == "at last"
        (removed,) = world.gone
        assert "SIGKILL" in removed.reason

    drive(scenario)


@pytest.mark.parametrize("where", ["thread", "loop"])
def test_a_process_that_a_step_forks_ends_with_the_callback(where: str):
    async def scenario(world: World) -> None:
        key, other = world.create("forks", where), world.create("quick")
        await world.run_to_the_end(key, other)
        assert world.output(key) == 0
        assert world.output(other) == "soon"
        assert not world.gone

    drive(scenario)


def test_stopping_is_no_death():
    async def scenario(world: World) -> None:
        key = world.create("blocks-in-a-thread")
        world.turn()
        await world.run_until(lambda: bool(world.run(key)))
        await world.host.stop()
        assert not world.gone
        assert not _lives(world.host.pid)

    drive(scenario)


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("not-a-module", "found 'not-a-module'"),
        ("nowhere", f"expected a module nowhere in {APPS}"),
        ("broken", "raises ZeroDivisionError: division by zero\nTraceback (most recent call"),
        ("exits", "expected exits to be imported, found that the process ended with exit code 5"),
    ],
)
def test_an_app_that_cannot_be_loaded(app: str, told: str):
    async def scenario() -> None:
        host = HostProcess(app, received=print, exited=print, code=HostCode(APPS))
        with pytest.raises(AppNotLoaded) as caught:
            await host.start()
        assert told in caught.value.message
        assert not _lives(host.pid)

    asyncio.run(scenario())


PARENT = """
import asyncio, sys
from pathlib import Path
from headwater.streams.workflows.host_process import HostCode, HostProcess
from headwater.processors.code.host_messages import Activate

async def main():
    code = HostCode(Path(sys.argv[1]))
    host = HostProcess("misbehaving", received=print, exited=print, code=code)
    await host.start()
    if sys.argv[2] == "blocked":
        host.send([Activate(1, "always-blocks", "i", 0, "null", "s", 0, 0, 0, 0, {}, 10, {}, 0)])
    print(host.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "blocked"])
def test_a_host_whose_parent_is_killed_ends(state: str):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(APPS), state], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _lives(pid)
        parent.kill()
    wait_until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
