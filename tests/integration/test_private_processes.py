"""Other processes of the same user do not read the secrets that a part was started with."""

import ctypes
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.gateway.settings import privacy

_PR_CAPBSET_DROP = 24
_CAP_SYS_PTRACE = 19
_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38

#: Reads what its parent was started with, as code of authors might.
CURIOUS = (
    "import os; from pathlib import Path\n"
    "own = Path('/proc/self/environ').read_bytes()\n"
    "try: found = Path(f'/proc/{os.getppid()}/environ').read_bytes()\n"
    "except PermissionError: found = b'closed'\n"
    "print(b'SECRET=of-the-operator' in found, found == b'closed', b'LOGNAME' in own)\n"
)
PARENT = (
    "import subprocess, sys\n"
    "module = {'__name__': 'privacy'}\n"
    "exec(sys.argv[2], module)\n"
    "if sys.argv[1] == 'closed': module['close_environment']()\n"
    "run = subprocess.run([sys.executable, '-c', sys.argv[3]], env={'LOGNAME': 'a'})\n"
    "sys.exit(run.returncode)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_only_a_process_that_closes_its_environment_keeps_it():
    # The module's text: another user need not be able to read the project.
    module = Path(privacy.__file__).read_text("utf-8")
    result = {}
    for state in ("open", "closed"):
        ran = subprocess.run(
            [_python(), "-c", PARENT, state, module, CURIOUS],
            env={"SECRET": "of-the-operator"},
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=_not_root,
        )
        result[state] = ran.stdout.split()
    assert result == {"open": ["True", "False", "True"], "closed": ["False", "True", "True"]}


CURIOUS_APP = """
import os
from pathlib import Path
from headwater import workflow

try:
    result = Path(f"/proc/{os.getppid()}/environ").read_bytes()
except PermissionError:
    result = b"closed"
Path(__file__).with_name("result").write_bytes(result)

@workflow("curious")
async def curious(event, step): ...
"""
CHECK = """
import asyncio, sys
from pathlib import Path
from headwater.gateway.settings.privacy import close_environment
from headwater.streams.workflows.host_process import HostCode, declarations_of

if sys.argv[1] == "closed":
    close_environment()
asyncio.run(declarations_of("curious", code=HostCode(Path(sys.argv[2])), memory_max=2**30))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("state", ["open", "closed"])
def test_code_that_is_checked_does_not_read_the_variables_of_its_parent(tmp_path: Path, state: str):
    (tmp_path / "curious.py").write_text(CURIOUS_APP)
    subprocess.run(
        [sys.executable, "-c", CHECK, state, tmp_path],
        env={"HEADWATER_ADMIN_KEY": "of-the-operator"},
        check=True,
        preexec_fn=_without_powers,
    )
    result = (tmp_path / "result").read_bytes()
    assert (b"of-the-operator" in result, result == b"closed") == (state == "open", state != "open")


def _without_powers() -> None:
    """Makes root an account that may not look into other processes, as in a container."""
    for capability in (_CAP_SYS_PTRACE, _CAP_SYS_ADMIN, _CAP_PERFMON):
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _python() -> str:
    """An interpreter that every user may run."""
    return "/usr/bin/python3" if os.geteuid() == 0 else sys.executable


def _not_root() -> None:
    if os.geteuid() == 0:
        account = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
