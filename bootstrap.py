"""Makes `.venv` from the locks; what `make setup` runs. Standard library only.

Runs on any Python 3 that a machine calls `python3`, looks for one that is new enough and goes on
with that. A stamp in `.venv` remembers what was installed, so that a second run does nothing. What
pip says is kept in a log; people see one line per phase, and on failure one line that says why.
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
#: Where the environment was made; its scripts hold that path and break when it moves.
HOME = VENV / "headwater.home"
LOG = VENV / "setup.log"
LOCK = ROOT / "requirements-dev.txt"
#: The provider that is a package of its own, so that `make up` takes what GitHub posts.
GITHUB = ROOT / "headwater-github"
#: What an installation depends on; a change of any of them makes the stamp stale.
SOURCES = (
    LOCK,
    ROOT / "pyproject.toml",
    ROOT / "streams" / "kafka" / "jgo.lock.toml",
    GITHUB / "pyproject.toml",
)

OLDEST = (3, 11)
#: Newest first; the locks are made for these. A later `python3` is tried when none of them is here.
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3")

#: Lines of a failed step that are shown.
TAIL_LINES = 8
#: What pip and venv print, and what that means for the person waiting. The first match counts.
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
        "A file could not be written: this directory, or .venv in it, belongs to somebody else.",
    ),
)


def say(line: str) -> None:
    """Prints a line now, not when the buffer is full."""
    print(line, flush=True)  # noqa: T201 (a program for the terminal)


def wanted_stamp() -> str:
    """Digests what would be installed, and where: an environment that was moved is a broken one."""
    digest = hashlib.sha256(str(ROOT).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def is_set_up(wanted: str) -> bool:
    """Compares the stamp; the Python of the environment may also have gone with an upgrade."""
    return STAMP.exists() and STAMP.read_text("utf-8") == wanted and PYTHON.exists()


def version_of(python: str) -> tuple[int, ...]:
    """Asks a Python for its version; (0,) if it does not run."""
    program = "import sys; print(*sys.version_info[:3])"
    try:
        said = subprocess.check_output([python, "-c", program], stderr=subprocess.DEVNULL)  # noqa: S603 (from PATH)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    return tuple(int(number) for number in said.split())


def find_python() -> tuple[str, str]:
    """Finds a Python that is new enough, or ends with a line that says which ones were seen."""
    seen = []
    for name in CANDIDATES:
        path = shutil.which(name)
        version = version_of(path) if path else (0,)
        written = ".".join(map(str, version))
        if path and version >= OLDEST:
            return path, written
        if path:
            seen.append(f"{name} is {written}" if version > (0,) else f"{name} does not run")
    found = "; ".join(seen) or "there is none on the PATH"
    oldest = ".".join(map(str, OLDEST))
    sys.exit(f"Headwater needs Python {oldest} or newer ({found}). Install one, then: make setup")


def run(*command: str) -> None:
    """Runs a step with its output in the log; ends with a diagnosis if it fails."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        start = log.tell()
        done = subprocess.run(  # noqa: S603 (our own steps, nothing comes from outside)
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, check=False
        )
    if done.returncode:
        fail(LOG.read_bytes()[start:].decode("utf-8", "replace"))


def fail(said: str) -> None:
    """Shows the end of what a failed step said, then what it means."""
    for line in deque(filter(str.strip, said.splitlines()), TAIL_LINES):
        say(f"  | {line}")
    meaning = next((text for sign, text in DIAGNOSES if re.search(sign, said)), None)
    sys.exit(meaning or f"The step failed; all it said is in {LOG.relative_to(ROOT)}.")


def make_environment(python: str) -> None:
    """Creates `.venv`, or empties one whose Python is gone, too old, or was made elsewhere."""
    usable = version_of(str(PYTHON)) >= OLDEST
    moved = HOME.exists() and HOME.read_text("utf-8") != str(ROOT)
    if usable and not moved:
        return
    # Its words go to a pipe: the log would lie in the directory that is being made.
    command = (python, "-m", "venv", "--clear", str(VENV))
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # noqa: S603 (found above)
    if made.returncode:
        fail(made.stdout.decode("utf-8", "replace"))
    HOME.write_text(str(ROOT), "utf-8")


def install() -> None:
    """Installs what the lock pins, and the project itself as a link to this directory."""
    count = len(re.findall(r"^\S+==", LOCK.read_text("utf-8"), re.MULTILINE))
    pip = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2")
    say(f"Installing {count} packages (needs the network once; a minute or two)")
    run(*pip, "install", "--require-hashes", "--requirement", str(LOCK))
    say("Installing Headwater itself")
    ours = [word for path in (ROOT, GITHUB) for word in ("--editable", str(path))]
    run(*pip, "install", "--no-deps", "--no-build-isolation", *ours)


def prepare_kafka() -> None:
    """Lets the project prepare Kafka; it reports its own progress and says why it failed."""
    command = [str(PYTHON), "-m", "headwater.streams.kafka.aot_cache"]
    done = subprocess.run(command, cwd=ROOT, check=False)  # noqa: S603 (our own module)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Sets up what is not set up yet."""
    wanted = wanted_stamp()
    if is_set_up(wanted):
        return
    python, version = find_python()
    say(f"Setting up .venv with Python {version}")
    make_environment(python)
    STAMP.unlink(missing_ok=True)
    LOG.write_text("", "utf-8")
    install()
    prepare_kafka()
    STAMP.write_text(wanted, "utf-8")
    say("Ready.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted; `make setup` goes on where it stopped.")
    except OSError as error:
        fail(f"{error.strerror} [Errno {error.errno}] {error.filename or ''}")
