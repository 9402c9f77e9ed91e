"""The supervisor with real child processes: it starts, watches, restarts and stops them.

Each test runs `system`, a program of a few parts under a `Supervisor`, and reads what it reports.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.gateway.local import processes, reaper
from headwater.gateway.local.processes import Heartbeat, ProcessSpec, RestartPolicy
from headwater.gateway.local.supervisor import ProcessFailed, Supervisor
from headwater.schemas.errors import ProcessUnavailable
from tests.waiting import wait_until

#: Longer than anything here takes; a test that meets it has failed.
PATIENCE_S = 60

#: Writes its pid where `ready` looks, then waits for a signal.
PART = "import os, pathlib, signal; written = pathlib.Path('{name}.new'); "
PART += "written.write_text(str(os.getpid())); written.rename('{name}.pid'); "
OBEDIENT = PART + "signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + PART
STUBBORN += "[signal.pause() for _ in iter(int, 1)]"

SYSTEM = """
import pathlib, signal, sys
from headwater.gateway.local.processes import ProcessSpec
from headwater.gateway.local.processes import RestartPolicy
from headwater.gateway.local.supervisor import Supervisor

def part(name, program):
    program = program.replace("{name}", name)
    ready = pathlib.Path(f"{name}.pid").exists
    argv = (sys.executable, "-c", program)
    return ProcessSpec(name=name, argv=argv, env={"GIVEN": name}, ready=ready)

def report(line):
    print(line, flush=True)

restarts = RestartPolicy(first_s=0.05, slowest_s=0.2, many=3)
with Supervisor(data_dir=pathlib.Path("."), report=report, restarts=restarts) as system:
    system.start(*map(part, sys.argv[1::2], sys.argv[2::2]))
    system.watch()
report("the end")
"""


class System:
    """A supervisor as a process of its own, and what it has reported so far."""

    def __init__(self, directory: Path, **parts: str) -> None:
        self.directory = directory
        words = [word for part in parts.items() for word in part]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SYSTEM, *words],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, sign: str) -> list[str]:
        """Reads what is reported until a line holds the sign; returns the lines."""
        assert self.process.stdout is not None
        read: list[str] = []
        for line in self.process.stdout:
            read.append(line.rstrip())
            if sign in line:
                return read
        raise AssertionError(f"never reported {sign!r}, but:\n" + "\n".join(read))

    def pid(self, name: str) -> int:
        return int((self.directory / f"{name}.pid").read_text())

    def rest(self) -> list[str]:
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return said.splitlines()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., System]]:
    with contextlib.ExitStack() as ends:

        def start(**parts: str) -> System:
            system = System(tmp_path, **parts)
            ends.callback(system.process.wait, PATIENCE_S)
            ends.callback(system.process.kill)
            assert system.process.stdout is not None
            ends.callback(system.process.stdout.close)
            return system

        yield start


def is_gone(pid: int) -> bool:
    """Whether a process ended; one that nobody has reaped yet has ended, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    return Path("/proc").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_parts_start_in_order_and_stop_in_reverse(
    run: Callable[..., System], number: signal.Signals
):
    system = run(first=OBEDIENT, second=OBEDIENT)
    started = system.until("second is ready")
    assert [line.partition(" (")[0] for line in started] == [
        "Starting first",
        "Starting second",
        "first is ready",
        "second is ready",
    ]
    pids = [system.pid("first"), system.pid("second")]
    system.process.send_signal(number)
    stopped = [line.partition(" (")[0] for line in system.rest()]
    assert stopped == ["second stopped", "first stopped", "the end"]
    assert system.process.returncode == 0
    assert all(map(is_gone, pids))


def test_a_part_gets_its_environment_and_its_log(run: Callable[..., System], tmp_path: Path):
    system = run(talker="import os; print('given', os.environ['GIVEN'], flush=True); " + OBEDIENT)
    system.until("talker is ready")
    assert (tmp_path / "logs" / "talker.log").read_text() == "given talker\n"


def test_the_previous_log_is_kept_once(run: Callable[..., System], tmp_path: Path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "part.log").write_text("previous")
    (logs / "part.log.1").write_text("before that")
    run(part=OBEDIENT).until("part is ready")
    assert (logs / "part.log.1").read_text() == "previous"
    assert (logs / "part.log").read_text() == ""


def test_a_part_that_dies_is_named_and_restarted(run: Callable[..., System]):
    system = run(part=OBEDIENT)
    system.until("part is ready")
    killed = system.pid("part")
    os.kill(killed, signal.SIGKILL)
    said = system.until("part is back")
    assert said[0].startswith("part died (killed by SIGKILL). Its log is ")
    assert "Starting part again in 0.05 s" in said
    wait_until(lambda: system.pid("part") != killed)


def test_of_the_log_of_a_part_that_died_only_what_it_said_since_its_start_is_quoted(
    run: Callable[..., System], tmp_path: Path
):
    mark = tmp_path / "began-before"
    system = run(
        part=PART
        + f"import pathlib; mark = pathlib.Path({str(mark)!r})\n"
        + "print('later' if mark.exists() else 'earlier', flush=True)\n"
        + "mark.touch(); signal.sigtimedwait([], .3); exit(3)"
    )
    system.until("part died (exit code 3)")
    system.until("part died (exit code 3)")
    said = system.until("Starting part again")
    assert "  | later" in said
    assert "  | earlier" not in said


def test_the_other_parts_do_not_notice(run: Callable[..., System]):
    system = run(steady=OBEDIENT, part=OBEDIENT)
    system.until("part is ready")
    steady = system.pid("steady")
    os.kill(system.pid("part"), signal.SIGKILL)
    system.until("part is back")
    assert system.pid("steady") == steady
    assert not is_gone(steady)


def test_a_part_that_keeps_dying_is_tried_on_slowly_and_its_log_is_quoted(
    run: Callable[..., System],
):
    system = run(
        part=PART + "print('the reason', flush=True); signal.sigtimedwait([], .3); exit(3)"
    )
    said = system.until("something is wrong with it. Retrying every 0.2 s")
    assert said.count("  | the reason") >= 3
    assert [line.partition(". ")[0] for line in said if "part died (" in line] == [
        "part died (exit code 3)"
    ] * 3
    system.until("Starting part again in 0.2 s")


def test_a_part_that_never_starts_ends_everything_with_one_message(tmp_path: Path):
    said: list[str] = []
    broken = ProcessSpec(
        name="broken",
        argv=(sys.executable, "-c", "print('no setting'); exit(2)"),
        env={},
        ready=lambda: False,
    )
    fine = ProcessSpec(
        name="fine",
        argv=(sys.executable, "-c", "import signal; signal.pause()"),
        env={},
        ready=lambda: True,
    )
    system = Supervisor(data_dir=tmp_path, report=said.append)
    with (
        pytest.raises(
            ProcessUnavailable, match=r"broken ended while starting \(exit code 2\).*\n  \| no"
        ),
        system,
    ):
        system.start(fine, broken)
    assert said[-1].startswith("fine stopped")


def test_a_part_that_cannot_be_run_at_all_is_one_message(tmp_path: Path):
    part = ProcessSpec(name="missing", argv=("/nonexistent/program",), env={}, ready=lambda: True)
    with (
        pytest.raises(ProcessUnavailable, match="missing could not be started: No such file"),
        Supervisor(data_dir=tmp_path, report=print) as system,
    ):
        system.start(part)


def test_a_second_signal_kills_at_once(run: Callable[..., System]):
    system = run(first=OBEDIENT, stubborn=STUBBORN)
    system.until("stubborn is ready")
    pids = [system.pid("first"), system.pid("stubborn")]
    began = time.monotonic()
    system.process.send_signal(signal.SIGINT)
    # The first signal has arrived when the supervisor stopped looking at its parts, which only a
    # second one shows; so it is sent until it is heeded.
    while system.process.poll() is None and time.monotonic() - began < PATIENCE_S:
        system.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            system.process.wait(0.2)
    assert system.rest()[-4:] == [
        "Killing the remaining processes",
        "stubborn killed",
        "first killed",
        "the end",
    ]
    assert all(map(is_gone, pids))


def test_children_of_a_part_go_with_it(run: Callable[..., System], tmp_path: Path):
    child = "import signal; signal.pause()"
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        f"{child!r}]); open('child.pid', 'w').write(str(child.pid)); " + OBEDIENT
    )
    system = run(part=parent)
    system.until("part is ready")
    system.process.send_signal(signal.SIGTERM)
    system.rest()
    # What was sent to it takes its time to arrive.
    wait_until(lambda: is_gone(system.pid("child")))


def test_nothing_outlives_a_supervisor_killed_with_kill_9(run: Callable[..., System]):
    system = run(first=OBEDIENT, second=OBEDIENT)
    system.until("second is ready")
    pids = [system.pid("first"), system.pid("second")]
    system.process.kill()
    wait_until(lambda: all(map(is_gone, pids)))
    assert system.process.wait() == -signal.SIGKILL


#: Ends only when the other one has been told to end, too.
TOGETHER = """
import os, pathlib, signal, time
told = lambda *_: pathlib.Path("{name}.told").touch()
signal.signal(signal.SIGTERM, told)
pathlib.Path("{name}.new").write_text(str(os.getpid()))
pathlib.Path("{name}.new").rename("{name}.pid")
while not all(pathlib.Path(each + ".told").exists() for each in ("first", "second")):
    time.sleep(0.01)
pathlib.Path("{name}.ended").touch()
"""


@pytest.mark.parametrize("killed", [False, True], ids=["in order", "by the reaper"])
def test_parts_that_were_started_together_stop_together(run: Callable[..., System], killed: bool):
    system = run(first=TOGETHER, second=TOGETHER)
    system.until("second is ready")
    pids = [system.pid("first"), system.pid("second")]
    if killed:
        system.process.kill()
    else:
        system.process.terminate()
        assert all("stopped" in line for line in system.rest()[:2])
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid))
    ended = [system.directory / f"{name}.ended" for name in ("first", "second")]
    assert all(item.exists() for item in ended), "neither waited until the other was killed"


def test_who_comes_after_a_killed_supervisor_waits_until_its_parts_have_ended(
    run: Callable[..., System], tmp_path: Path
):
    slow = OBEDIENT.replace("signal.pause()", "signal.signal(signal.SIGTERM, lambda *_: None); ")
    slow += "signal.pause(); [None for _ in iter(pathlib.Path('may end').exists, True)]"
    system = run(part=slow)
    system.until("part is ready")
    pid = system.pid("part")
    system.process.kill()
    system.process.wait()
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        assert not is_gone(pid)
        (tmp_path / "may end").touch()

    with Supervisor(data_dir=tmp_path, report=report):
        assert is_gone(pid)
    assert said == [
        f"Waiting for processes of a killed Headwater (pid {system.process.pid}) to end"
    ]


def test_a_process_that_nobody_has_looked_at_since_it_ended_does_not_run():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: is_gone(ended.pid))
    assert not reaper.is_running(ended.pid)
    assert reaper.is_running(os.getpid())
    ended.wait()
    assert not reaper.is_running(ended.pid)


def test_two_on_one_directory_are_one_clear_line(run: Callable[..., System], tmp_path: Path):
    system = run(part=OBEDIENT)
    system.until("part is ready")
    with (
        pytest.raises(
            ProcessUnavailable, match=rf"already runs on .* \(pid {system.process.pid}\)"
        ),
        Supervisor(data_dir=tmp_path, report=print),
    ):
        raise AssertionError("the second one must not get in")
    system.process.send_signal(signal.SIGTERM)
    system.rest()
    with Supervisor(data_dir=tmp_path, report=print):
        pass


def test_a_signal_while_a_server_starts_stops_it(tmp_path: Path):
    program = textwrap.dedent("""
        import pathlib, signal, sys, time
        from headwater.gateway.local.supervisor import Supervisor

        class Slow:
            name, pid, log_file, stop_signal = "slow", None, pathlib.Path("none"), signal.SIGTERM
            def start(self): print("slow is starting", flush=True); time.sleep(60)
            def ask_to_stop(self): pass
            def stop(self): print("slow was told to stop", flush=True)
            def kill(self): pass
            def poll(self): return None

        with Supervisor(data_dir=pathlib.Path("."), report=print) as system:
            system.start_embedded(Slow())
            raise AssertionError("was not interrupted")
        print("the end", flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "slow is starting\n":
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert said.splitlines()[-2:] == ["slow was told to stop", "the end"]
    assert process.returncode == 0


# -- without a data directory: processes of `--processes`, of which no readiness is known


def unknown(name: str, program: str) -> ProcessSpec:
    argv = (sys.executable, "-c", program.replace("{name}", name))
    return ProcessSpec(name=name, argv=argv, env={})


def test_a_process_that_is_killed_comes_back_and_writes_to_the_stderr_of_all(
    capfd: pytest.CaptureFixture[str],
):
    said: list[str] = []
    pids: list[int] = []

    def report(line: str) -> None:
        said.append(line)
        if "is running" in line:
            pids.append(int(line.partition("pid ")[2].rstrip(")")))
            # The second one is there: enough was seen.
            os.kill(*((pids[0], signal.SIGKILL) if pids[1:] == [] else (os.getpid(), 15)))

    program = (
        "import sys, signal; sys.stderr.write('a line\\n'); sys.stderr.flush(); signal.pause()"
    )
    warned: list[str] = []
    with Supervisor(report=report, warn=warned.append, restarts=RestartPolicy(first_s=0.05)) as it:
        it.start(unknown("part", program))
        it.watch()
    assert warned == ["part died (killed by SIGKILL).", "Starting part again in 0.05 s"]
    assert said[0] == "Starting part"
    assert [line.partition(" (")[0] for line in said[1:]] == ["part is running"] * 2 + [
        "part stopped"
    ]
    assert it.stopped_in_order
    assert pids[0] != pids[1]
    assert all(map(is_gone, pids))
    assert set(capfd.readouterr().err.splitlines()) <= {"a line"}


@pytest.mark.parametrize(("first_start_s", "ends"), [(600.0, True), (0.0, False)])
def test_an_error_soon_after_the_first_start_ends_everything(first_start_s: float, ends: bool):
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        if line.startswith("Starting bad again"):
            os.kill(os.getpid(), signal.SIGTERM)

    system = Supervisor(report=report, restarts=RestartPolicy(first_start_s=first_start_s))
    with pytest.raises(ProcessFailed) if ends else contextlib.nullcontext() as failed, system:
        system.start(unknown("fine", "import signal; signal.pause()"), unknown("bad", "exit(70)"))
        system.watch()
    assert [line for line in said if line.startswith("fine stopped")]
    if failed is None:
        assert "bad died (exit code 70)." in said
    else:
        assert failed.value.exit_code == 70
        assert failed.value.message.startswith("bad ended within 600 s of its first start")


@pytest.mark.parametrize("ready", [None, lambda: True], ids=["unknown", "known"])
def test_a_process_whose_name_another_has_taken_ends_everything_also_after_a_restart(
    tmp_path: Path, ready: Callable[[], bool] | None
):
    restarted = tmp_path / "restarted"
    program = (
        f"import os, pathlib, signal; mark = pathlib.Path({str(restarted)!r})\n"
        "if mark.exists(): exit(78)\n"
        "mark.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    bad = ProcessSpec(name="bad", argv=(sys.executable, "-c", program), env={}, ready=ready)
    said: list[str] = []
    system = Supervisor(report=said.append, restarts=RestartPolicy(first_s=0.05))
    match = r"bad ended \(exit code 78\); usual cause: another process has its name"
    with pytest.raises(ProcessFailed, match=match) as failed, system:  # noqa: PT012
        system.start(unknown("fine", "import signal; signal.pause()"), bad)
        system.watch()
    assert failed.value.exit_code == 78
    assert restarted.exists()
    assert [line for line in said if line.startswith("fine stopped")]


def test_a_name_that_is_taken_while_a_process_starts_ends_everything_with_the_same_code():
    bad = ProcessSpec(
        name="bad", argv=(sys.executable, "-c", "exit(78)"), env={}, ready=lambda: False
    )
    with pytest.raises(ProcessFailed) as failed, Supervisor(report=print) as system:
        system.start(bad)
    assert failed.value.exit_code == 78


def test_a_signal_while_a_process_is_restarted_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
):
    pids: list[int] = []

    def popen(argv: tuple[str, ...], **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        process = subprocess.Popen(argv, **options)
        pids.append(process.pid)
        # The second one exists, and nobody knows it yet.
        os.kill(*((process.pid, signal.SIGKILL) if len(pids) == 1 else (os.getpid(), 15)))
        return process

    patched = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(processes, "subprocess", patched)
    said: list[str] = []
    with Supervisor(report=said.append, restarts=RestartPolicy(first_s=0.05)) as system:
        system.start(unknown("part", "import signal; signal.pause()"))
        system.watch()
    assert len(pids) == 2
    assert all(map(is_gone, pids))
    assert said[-1].startswith("part stopped")


def test_processes_that_do_not_stop_are_killed_together_and_that_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headwater.server_process.STOP_TIMEOUT_S", 0.5)
    said: list[str] = []
    system = Supervisor(report=said.append)
    with system:
        system.start(unknown("one", STUBBORN), unknown("two", STUBBORN))
        for name in ("one", "two"):
            wait_until(lambda name=name: (tmp_path / f"{name}.pid").exists())
    assert said[-2:] == ["two killed", "one killed"] or said[-2:] == ["one killed", "two killed"]
    assert not system.stopped_in_order


def test_a_process_whose_heartbeat_stops_is_killed_and_started_again():
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        if sum(line.startswith("stuck is running") for line in said) > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    stuck = dataclasses.replace(
        unknown("stuck", "import signal; signal.pause()"), last_heartbeat=lambda _process_id: 1
    )
    policy = RestartPolicy(first_s=0.05, hung_after_s=1.0)
    with Supervisor(report=report, restarts=policy) as system:
        system.start(stuck)
        system.watch()
    assert "stuck makes no progress for 1 s and is killed" in said


def test_a_heartbeat_stops_after_so_many_seconds_that_we_watched():
    beats = iter([5, 6])
    last = [next(beats)]
    heartbeat = Heartbeat(lambda _process_id: last[0], 3.0)
    assert not any(heartbeat.has_stopped(7, now_s) for now_s in (100.0, 101.0, 102.0))
    assert not heartbeat.has_stopped(7, 102.5)
    last[0] = next(beats)
    # Of the hours in which we were suspended, two seconds count.
    assert not any(heartbeat.has_stopped(7, now_s) for now_s in (103.0, 9_000.0, 9_000.9))
    assert heartbeat.has_stopped(7, 9_001.0)
    # The process that replaces it has just started.
    assert not heartbeat.has_stopped(8, 9_002.0)


def test_a_process_that_never_had_a_heartbeat_is_left_alone():
    heartbeat = Heartbeat(lambda _process_id: 0, 3.0)
    assert not any(heartbeat.has_stopped(7, now_s) for now_s in range(100, 200))
