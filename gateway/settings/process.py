"""Start of a long-running process: its names, its log, and warnings of connections without TLS."""

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from headwater.gateway.settings.environment import secret_settings
from headwater.gateway.settings.exposure import is_loopback, is_plain_http
from headwater.gateway.settings.privacy import close_environment, exposing_ancestors
from headwater.gateway.settings.settings import PREFIX, Settings
from headwater.streams.log_lines import LogStyle, log_in
from headwater.streams.telemetry import start_telemetry

#: libpq's modes in which a connection is never made without TLS.
_ENCRYPTED: Final = frozenset({"require", "verify-ca", "verify-full"})
_PORT: Final = re.compile(r":[0-9]*$")
_LIBPQ: Final = re.compile(r"(\w+)\s*=\s*(?:'([^']*)'|(\S+))")


def clear_text_warnings(settings: Settings, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield one line per setting that sends secrets or personal data without TLS.

    Args:
        settings: The settings of this process.
        variables: Environment variables; those of AWS name the endpoint of a bucket.
    """
    if is_plain_http(settings.terra_api) and settings.terra_api_key.get_secret_value():
        yield (
            "HEADWATER_TERRA_API is http:// on another machine: the key of Terra's API and lab "
            "reports are sent without TLS; set it to https://"
        )
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL", "")
    if settings.blobs.startswith("s3://") and is_plain_http(endpoint):
        yield (
            "AWS_ENDPOINT_URL is http:// on another machine: uploaded files are sent without TLS; "
            "set it to https://"
        )
    if _postgres_in_the_clear(settings.postgres):
        yield (
            "HEADWATER_POSTGRES names another machine and may connect without TLS: add "
            "sslmode=verify-full, or sslmode=require where the network is your own"
        )
    if settings.kafka_sasl and not settings.kafka_tls:
        servers = settings.kafka.split(",")
        if not all(is_loopback(server.rpartition(":")[0].strip("[]")) for server in servers):
            yield (
                "HEADWATER_KAFKA_SASL is set without HEADWATER_KAFKA_TLS: credentials for Kafka "
                "are sent without TLS; set HEADWATER_KAFKA_TLS=true"
            )
    if is_plain_http(settings.kafka_token_url):
        yield (
            "HEADWATER_KAFKA_TOKEN_URL is http:// on another machine: the client secret is sent "
            "without TLS; set it to https://"
        )


def _postgres_in_the_clear(dsn: str) -> bool:
    if not dsn:
        return False
    if "://" in dsn:
        parts = urlsplit(dsn)
        parameters = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        hosts = parameters.get("host") or parts.netloc.rpartition("@")[2]
        names = [_PORT.sub("", part) for part in hosts.split(",")]
    else:
        parameters = {name: quoted or plain for name, quoted, plain in _LIBPQ.findall(dsn)}
        names = (parameters.get("hostaddr") or parameters.get("host", "")).split(",")
    local = all(not name or name.startswith(("/", "%2F")) or _is_local(name) for name in names)
    return not local and parameters.get("sslmode") not in _ENCRYPTED


def _is_local(name: str) -> bool:
    return is_loopback(name.strip("[]"))


# -- processes of one command

_VARIABLE: Final = PREFIX + "GROUP_PROCESS"
_NOTHING: Final = "{}"


class GroupProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process knows that its parent started as one of several, by `--processes`.

    Attributes:
        name: Its name in the log that all of them share, such as `gateway-2`.
        shares_port: Whether all of them listen on one port, which the parent has reserved.
        metrics: Folder where the processes of a gateway share their counters.
    """

    name: str = ""
    shares_port: bool = False
    metrics: str | None = None

    def variables(self) -> dict[str, str]:
        """Return the environment variable of the process, if there is anything to know."""
        known = msgspec.json.encode(self).decode()
        return {} if known == _NOTHING else {_VARIABLE: known}


def group_process() -> GroupProcess:
    """Return what this process knows from its parent; the defaults if it was started alone."""
    return msgspec.json.decode(os.environ.get(_VARIABLE, _NOTHING), type=GroupProcess)


# -- start

#: Files of our processes are private.
_UMASK: Final = 0o077
_LOG: Final = logging.getLogger("headwater")


def process_name() -> str:
    """Return the name of this process, unique in the system."""
    return f"{socket.gethostname()}-{os.getpid()}"


def begin_service(settings: Settings, name: str) -> None:
    """Begin a process without authors' code: private, with a log on stderr."""
    close_environment()
    os.umask(_UMASK)
    log_to_stderr(settings, name)
    start_telemetry(name, os.environ)


def log_to_stderr(settings: Settings, name: str) -> None:
    """Log to stderr at the configured level; warn first of secrets that others can read.

    Args:
        settings: The settings of this process.
        name: Name of the process in its log, if it is the only one of its command.
    """
    group = group_process().name
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    process = group or (name if as_json else "")
    style = LogStyle(
        json=as_json, project=settings.project, process=process, host=socket.gethostname()
    )
    log_in(style, settings.log_level.upper())
    if settings.log_level != "debug":
        # They log every attempt to connect; our own code logs a lost connection once.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    if group:
        return  # The parent has warned.
    exposed = exposing_ancestors(set(secret_settings(type(settings)).values()), os.getppid())
    for line in (*clear_text_warnings(settings, os.environ), *exposed):
        _LOG.warning("%s", line)
