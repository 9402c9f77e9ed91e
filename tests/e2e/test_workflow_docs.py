"""What the pages about workflows tell somebody to do is done, in their order, and does it.

Method: blocks of Markdown are marked by the words behind their fence.

- ```python shop.py, ```toml rules.toml: a file; blocks of one name, of all pages, are one file.
- ```sh up: what is started and goes on beside all others, until the end.
- ```sh: is run by bash -e at a terminal of 100 columns. Variables are kept within a page.
- ```sh eventually: the same, which only looks; again until it shows what is expected.
- ```python service: a program that talks with the service.
- ```text, right behind one of these: what it shows. `…` stands for anything in a line, a line of
  that alone for any lines. How wide columns are is not compared, nor are lines that a replay has
written again: whether there is one is a matter of time.

The first page starts the service. The others have instances of their own, and are done by two
readers at a time. Pages that call curl are left out where there is none; the service is started all
the same.

The service is what `headwater up --app` runs, on ports of its own in place of the documented ones.
"""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.e2e.system import free_port

ROOT = Path(__file__).resolve().parents[2]
FIRST = "README"
PAGES = (FIRST, "cli", "debugging", "routes", "triggers")
OTHERS = ("authoring", "concepts", "deployments", "operating", "rules", "runs", "testing")
FENCE = re.compile(r"^```(\w+)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Where the pages say that the gateways listen.
PORTS = ("8080", "8081")
#: Anything in a line, or nothing, as where a column is so narrow that the line ends before.
ANYTHING = re.compile(" ?… ?")
PATIENCE_S = 120.0
STARTED_WITHIN_S = 180.0
COLUMNS = 100
READERS = 2
REPLAYED = "(replay)"


@dataclass(kw_only=True)
class Block:
    page: str
    line: int
    language: str
    mark: str
    text: str
    expected: str | None = None

    @property
    def place(self) -> str:
        return f"docs/workflows/{self.page}.md:{self.line}"


def read(page: str) -> list[Block]:
    text = (ROOT / "docs" / "workflows" / f"{page}.md").read_text("utf-8")
    blocks: list[Block] = []
    end = 0
    for result in FENCE.finditer(text):
        language, mark, body = result.groups()
        if language == "text":
            assert blocks, f"{page}: expected something that shows this before {body!r}"
            assert not text[end : result.start()].strip(), f"{page}: {body!r} is not right behind"
            blocks[-1].expected = body
        else:
            line = text.count("\n", 0, result.start()) + 1
            blocks.append(Block(page=page, line=line, language=language, mark=mark, text=body))
        end = result.end()
    return blocks


@dataclass
class System:
    """The service, and a directory of somebody who reads the pages."""

    home: Path
    environment: dict[str, str]
    ports: dict[str, str]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def here(self, text: str) -> str:
        """A text with the ports that are ours."""
        for reported, ours in self.ports.items():
            text = re.sub(rf"\b{reported}\b", ours, text)
        return text

    def begin(self, block: Block) -> None:
        """Starts what goes on."""
        log = self.home / f"{len(self.running)}.log"
        with log.open("wb") as reported:
            # A shell of one command becomes that command.
            argv = ["bash", "-c", self.here(block.text).strip()]
            process = subprocess.Popen(
                argv, cwd=self.home, env=self.environment, stdout=reported, stderr=reported
            )
        self.running.append(process)
        port = re.search(r"--port (\d+)", self.here(block.text))
        url = f"http://127.0.0.1:{port[1] if port else self.ports[PORTS[0]]}/health/ready"
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{block.place} did not start:\n{log.read_text('utf-8')}")
            time.sleep(0.05)

    def show(self, argv: list[str]) -> tuple[int, str]:
        """Runs a program at a terminal; gives its code, and what the terminal shows."""
        ours, its = pty.openpty()
        process = subprocess.Popen(
            argv,
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=its,
        )
        os.close(its)
        shown = bytearray()
        with contextlib.suppress(OSError):  # so ends a terminal that nobody has open
            while part := os.read(ours, 65_536):
                shown += part
        os.close(ours)
        return process.wait(), shown.decode().replace("\r\n", "\n")

    def close(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(url).is_success
    except httpx2.TransportError:
        return False


def write_files(home: Path) -> set[str]:
    """Writes the files of all pages."""
    files: dict[str, list[str]] = {}
    for block in (block for page in PAGES for block in read(page)):
        if "." in block.mark:
            files.setdefault(block.mark, []).append(block.text)
    for name, texts in files.items():
        (home / name).write_text("\n\n".join(texts), "utf-8")
    return set(files)


def lacking(page: str) -> str:
    """Why a page cannot be followed on this machine; nothing if it can be."""
    scripts = [block.text for block in read(page) if block.language == "sh"]
    if shutil.which("curl") or not any(re.search(r"\bcurl\b", script) for script in scripts):
        return ""
    return f"docs/workflows/{page}.md calls curl; install it, as with `apt-get install curl`"


def require_terminals() -> None:
    try:
        ends = pty.openpty()
    except OSError as error:
        pytest.skip(f"expected a pseudo terminal, found {error}; mount devpts at /dev/pts")
    for end in ends:
        os.close(end)


@pytest.fixture(scope="module")
def system(scratch: Path) -> Iterator[System]:
    require_terminals()
    home = scratch / "reader"
    home.mkdir()
    ports = {reported: str(free_port()) for reported in PORTS}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
    environment = {
        **ours,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "dumb",
        "COLUMNS": str(COLUMNS),
        "LINES": "50",
        "HEADWATER_PORT": ports["8080"],
        "HEADWATER_KAFKA_PORT": str(free_port()),
        "HEADWATER_POSTGRES_PORT": str(free_port()),
    }
    if "rules.toml" in write_files(home):
        environment["HEADWATER_RULES"] = "rules.toml"
    system = System(home, environment, ports)
    try:
        yield system
    finally:
        system.close()


@pytest.fixture(scope="module")
def readings(system: System) -> Iterator[dict[str, "Future[None]"]]:
    """What comes of each page that can be followed here."""
    with ThreadPoolExecutor(READERS) as readers:
        readings = {FIRST: readers.submit(follow, system, FIRST)}
        readings[FIRST].result()
        others = [page for page in PAGES if page != FIRST and not lacking(page)]
        yield readings | {page: readers.submit(follow, system, page) for page in others}


@pytest.mark.parametrize("page", PAGES)
def test_what_the_pages_say_is_so(readings: dict[str, "Future[None]"], page: str):
    if why := lacking(page):
        pytest.skip(why)
    readings[page].result()


def test_the_service_names_its_workflows_and_ends_in_order(
    system: System, readings: dict[str, "Future[None]"]
):
    """Behind those that use it."""
    for reading in readings.values():
        reading.result()
    up, *others = system.running
    for process in others:
        process.terminate()
        process.wait(30)
    up.terminate()
    assert up.wait(PATIENCE_S) == 0
    lines = (system.home / "0.log").read_text("utf-8").splitlines()
    for beginning in ("Workflows of shop: courier, order, ", "workflows is ready"):
        assert any(line.startswith(beginning) for line in lines), lines
    stopped = [line for line in lines if " stopped (" in line]
    assert stopped[0].startswith("workflows stopped")
    assert any(line.startswith("kafka stopped") for line in stopped)


def test_pages_that_call_curl_are_left_out_where_there_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert "docs/workflows/routes.md calls curl; install it" in lacking("routes")
    assert not lacking("debugging")


def test_without_pseudo_terminals_no_page_is_followed(monkeypatch: pytest.MonkeyPatch):
    def none_left() -> None:
        raise OSError("out of pty devices")

    monkeypatch.setattr(pty, "openpty", none_left)
    with pytest.raises(pytest.skip.Exception, match="found out of pty devices; mount devpts"):
        require_terminals()


def follow(system: System, page: str) -> None:
    """Does what a page says; of one that cannot be followed, what it starts for the others."""
    kept = system.home / f"{page}.env"
    kept.write_text("")
    blocks = read(page)
    for block in [block for block in blocks if block.mark == "up"] if lacking(page) else blocks:
        text = system.here(block.text)
        match block.language, block.mark:
            case "sh", "up":
                system.begin(block)
            case "sh", ("" | "eventually") as mark:
                script = f"set -a; . {kept}\n{text}\nexport -p > {kept}"
                run(system, block, ["bash", "-e", "-c", script], again=mark == "eventually")
            case "python", "service":
                run(system, block, [sys.executable, "-c", text])
            case "python", "":
                pass  # by tests/unit/test_docs.py
            case _, mark:
                assert "." in mark, f"{block.place}: expected a known mark, found {mark!r}"


def run(system: System, block: Block, argv: list[str], *, again: bool = False) -> None:
    """Runs a block, and compares what it shows."""
    deadline = time.monotonic() + (PATIENCE_S if again else 0)
    while True:
        code, shown = system.show(argv)
        if code == 0 and (block.expected is None or shows(system, block.expected)(shown)):
            return
        assert time.monotonic() < deadline, (
            f"{block.place}: {block.text}ended with {code} and shows\n{shown}\n"
            f"expected\n{block.expected or 'nothing in particular'}"
        )
        time.sleep(0.3)  # a command takes longer than that


def shows(system: System, expected: str) -> Callable[[str], bool]:
    """Whether a text is what is expected."""
    lines = [
        r"(?:[^\n]*\n)*?"
        if line == "…"
        else "[^\n]*".join(map(re.escape, ANYTHING.split(line))) + r"\n"
        for line in plain(system.here(expected))
    ]
    pattern = re.compile("".join(lines))
    return lambda shown: (
        pattern.fullmatch("".join(f"{line}\n" for line in plain(shown))) is not None
    )


def plain(text: str) -> list[str]:
    """The lines of a text that say something, whatever the width of their columns."""
    lines = (re.sub(r"─+", "─", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if line and REPLAYED not in line]


def test_every_page_is_looked_at():
    pages = {path.stem for path in (ROOT / "docs" / "workflows").glob("*.md")}
    assert pages == {*PAGES, *OTHERS}
    for page in OTHERS:
        marked = [block.place for block in read(page) if block.mark or block.language == "sh"]
        assert not marked, f"expected nothing to run in these, found {marked}"
