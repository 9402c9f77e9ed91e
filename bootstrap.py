"""Create `.venv` from the lock files; `make setup` runs it. Standard library only.

It runs on any Python 3 that a machine calls `python3`, and searches for one that is new enough. A
stamp in `.venv` records what was installed, so that a second run does nothing. The output of pip
goes to a log; the terminal shows a line per phase and, on failure, a line with the cause.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "headwater.stamp"
#: Records where the environment was created; its scripts contain that path and break if it moves.
HOME = VENV / "headwater.home"
LOG = VENV / "setup.log"
LOCK = ROOT / "requirements-dev.txt"
#: The provider that is a package of its own, so that `make up` accepts GitHub's deliveries.
GITHUB = ROOT / "headwater-github"
#: Files that determine an installation; changing one makes the stamp stale.
SOURCES = (
    LOCK,
    ROOT / "pyproject.toml",
    ROOT / "streams" / "kafka" / "jgo.lock.toml",
    GITHUB / "pyproject.toml",
)

#: Modules that import what processes and tests need.
IMPORTED = (
    "headwater.gateway.cli.pipeline",
    "headwater.gateway.cli.projecting",
    "headwater.gateway.cli.serving",
    "headwater.gateway.cli.up",
    "headwater.gateway.cli.work",
    "headwater.streams.code_host.child",
    "hypothesis",
    "schemathesis.pytest.plugin",
)

OLDEST = (3, 11)
#: Newest first; the lock files are made for these. A later `python3` is tried last.
CANDIDATES = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")

#: Lines of a failed step that are shown.
TAIL_LINES = 8
#: Messages of pip and venv, and explanations for users. The first match counts.
DIAGNOSES = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "The disk is full: .venv needs 600 MB. Free some space, then: make setup",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "A package is not the one that was pinned (its hash differs), so it was not installed. "
        "Usual cause: a mirror or proxy that alters packages. Try from another network.",
    ),
    (
        r"ensurepip is not available|No module named (ensurepip|venv)",
        "This Python lacks its venv module. On Debian or Ubuntu: apt install python3-venv",
    ),
    (
        r"NameResolutionError|NewConnectionError|ConnectTimeout|ProxyError|ConnectionError"
        r"|Connection (refused|reset)|Network is unreachable|Temporary failure in name resolution"
        r"|timed out|from versions: none",
        "No network: the packages could not be fetched. It is needed once; then: make setup",
    ),
    (
        r"Permission denied|Errno 13",
        "A file could not be written: this directory, or .venv in it, belongs to another user.",
    ),
)


def say(line: str) -> None:
    """Print a line immediately, without buffering."""
    print(line, flush=True)  # noqa: T201 (a program for the terminal)


def expected_stamp() -> str:
    """Return a digest of what would be installed, and where: a moved environment is broken."""
    digest = hashlib.sha256(str(ROOT).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def is_set_up(expected: str) -> bool:
    """Return whether the stamp is current. An upgrade may also have removed the Python."""
    return STAMP.exists() and STAMP.read_text("utf-8") == expected and PYTHON.exists()


def version_of(python: str) -> tuple[int, ...]:
    """Return the version of a Python; (0,) if it does not run."""
    program = "import sys; print(*sys.version_info[:3])"
    try:
        output = subprocess.check_output([python, "-c", program], stderr=subprocess.DEVNULL)  # noqa: S603 (from PATH)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    return tuple(int(number) for number in output.split())


def find_python() -> tuple[str, str]:
    """Return a Python that is new enough; exit with the versions found if there is none."""
    seen = []
    for name in CANDIDATES:
        path = shutil.which(name)
        version = version_of(path) if path else (0,)
        text = ".".join(map(str, version))
        if path and version >= OLDEST:
            return path, text
        if path:
            seen.append(f"{name} is {text}" if version > (0,) else f"{name} does not run")
    problem = "; ".join(seen) or "there is none on the PATH"
    oldest = ".".join(map(str, OLDEST))
    sys.exit(f"Headwater needs Python {oldest} or newer ({problem}). Install one, then: make setup")


def run(*command: str) -> None:
    """Run a step with its output in the log; exit with an explanation if it fails."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        start = log.tell()
        done = subprocess.run(  # noqa: S603 (our own steps, without outside input)
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, check=False
        )
    if done.returncode:
        fail(LOG.read_bytes()[start:].decode("utf-8", "replace"))


def fail(output: str) -> None:
    """Print the end of a failed step's output, and its explanation; exit."""
    for line in deque(filter(str.strip, output.splitlines()), TAIL_LINES):
        say(f"  | {line}")
    meaning = next((text for sign, text in DIAGNOSES if re.search(sign, output)), None)
    sys.exit(meaning or f"The step failed; its whole output is in {LOG.relative_to(ROOT)}.")


def make_environment(python: str) -> None:
    """Create `.venv`, or recreate it if it was moved, or its Python is missing or too old."""
    usable = version_of(str(PYTHON)) >= OLDEST
    moved = HOME.exists() and HOME.read_text("utf-8") != str(ROOT)
    if usable and not moved:
        return
    # Its output goes to a pipe: the log would be in the directory that is being created.
    command = (python, "-m", "venv", "--clear", str(VENV))
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # noqa: S603 (found above)
    if made.returncode:
        fail(made.stdout.decode("utf-8", "replace"))
    HOME.write_text(str(ROOT), "utf-8")


def install() -> None:
    """Install the pinned packages, and the project itself as a link to this directory."""
    count = len(re.findall(r"^\S+==", LOCK.read_text("utf-8"), re.MULTILINE))
    pip = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2")
    say(f"Installing {count} packages (needs the network once; a minute or two)")
    # pip would compile thousands of modules that nothing imports; `prepare` compiles the others.
    run(*pip, "install", "--no-compile", "--require-hashes", "--requirement", str(LOCK))
    say("Installing Headwater itself")
    editable = [word for path in (ROOT, GITHUB) for word in ("--editable", str(path))]
    run(*pip, "install", "--no-compile", "--no-deps", "--no-build-isolation", *editable)


def prepare() -> None:
    """Prepare Kafka, and meanwhile compile what processes import, which several would at once.

    The module of Kafka prints its progress and its errors.
    """
    imports = [str(PYTHON), "-c", f"import {', '.join(IMPORTED)}"]
    command = [str(PYTHON), "-m", "headwater.streams.kafka.aot_cache"]
    with subprocess.Popen(imports, cwd=ROOT):  # noqa: S603 (our own modules)
        done = subprocess.run(command, cwd=ROOT, check=False)  # noqa: S603 (our own module)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Set up what is missing."""
    expected = expected_stamp()
    if is_set_up(expected):
        return
    python, version = find_python()
    say(f"Setting up .venv with Python {version}")
    make_environment(python)
    STAMP.unlink(missing_ok=True)
    LOG.write_text("", "utf-8")
    install()
    prepare()
    STAMP.write_text(expected, "utf-8")
    say("Ready.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted; `make setup` continues where it stopped.")
    except OSError as error:
        fail(f"{error.strerror} [Errno {error.errno}] {error.filename or ''}")
