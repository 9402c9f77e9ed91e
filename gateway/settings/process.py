"""Start of a long-running process: its name, log and privacy."""

import logging
import os
import socket
import sys
from typing import Final

from headwater.gateway.settings.clear_text import clear_text_warnings
from headwater.gateway.settings.privacy import close_environment
from headwater.gateway.settings.settings import Settings

#: Files of our processes are private.
_UMASK: Final = 0o077
_LOG: Final = logging.getLogger("headwater")


def process_name() -> str:
    """Return the name of this process, unique in the system."""
    return f"{socket.gethostname()}-{os.getpid()}"


def begin_service(settings: Settings) -> None:
    """Begin a process without authors' code: private, with a log on stderr."""
    close_environment()
    os.umask(_UMASK)
    log_to_stderr(settings)


def log_to_stderr(settings: Settings) -> None:
    """Log to stderr at the configured level; warn first of connections without TLS."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if settings.log_level != "debug":
        # They log every attempt to connect; our own code logs a lost connection once.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        logging.getLogger("httpx").setLevel(logging.WARNING)
    for line in clear_text_warnings(settings, os.environ):
        _LOG.warning("%s", line)
