"""Other processes of the same user do not read the secrets that a part was started with."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.gateway.settings import privacy

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


def _python() -> str:
    """An interpreter that every user may run."""
    return "/usr/bin/python3" if os.geteuid() == 0 else sys.executable


def _not_root() -> None:
    if os.geteuid() == 0:
        account = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
