"""The command line in the process of the tests, which has Python started and all imported."""

import logging
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from headwater.gateway.cli.main import main


def variables_of(**variables: str) -> dict[str, str]:
    """Our environment, with these variables of Headwater's alone."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
    return {**ours, **variables}


def called(
    *arguments: str | bytes, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `headwater` as a shell would: with its arguments and variables, to its exit code.

    Not for commands that serve: they leave threads, and settings of the process.
    """
    argv = ["headwater", *map(os.fsdecode, arguments)]
    with (
        patch.dict(os.environ, variables_of(**variables), clear=True),
        patch.object(sys, "argv", argv),
        patch.object(logging, "lastResort", logging.lastResort),
        chdir(cwd or Path.cwd()),
        redirect_stdout(StringIO()) as stdout,
        redirect_stderr(StringIO()) as stderr,
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(argv, ended.value.code, stdout.getvalue(), stderr.getvalue())
