"""Sources as the settings name them, and their signing secrets from wherever they are.

Without a file, every provider is a source of its own name, whose secrets are a setting. The
pipeline needs the sources alone; secrets are read by those who receive or sign.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from headwater.gateway.exposure import SECRET_MIN, weakness_of
from headwater.gateway.loopback import DEVELOPMENT_SECRETS, development_secret, is_loopback
from headwater.gateway.providers import installed_providers, provider_names
from headwater.gateway.settings import PREFIX, Settings, secrets_variable
from headwater.processors.signatures import key_of, secret_of
from headwater.processors.sources import (
    Source,
    SourcesInvalid,
    read_sources,
    source_of,
    webhook_providers,
)
from headwater.schemas.errors import HeadwaterError

#: What `headwater up` takes for a file of sources: one of each scheme, for this machine alone.
DEVELOPMENT_SOURCES: Final = str(files("headwater.gateway.local") / "sources.toml")


def with_development_sources(settings: Settings) -> Settings:
    """The settings; those of this machine alone without a file with one source of each kind."""
    if settings.sources or not is_loopback(settings.host):
        return settings
    return settings.model_copy(update={"sources": DEVELOPMENT_SOURCES})


def sources_of(settings: Settings) -> tuple[Source, ...]:
    """The sources, without their secrets.

    Errors: SourcesInvalid, ProviderInvalid.
    """
    providers = installed_providers()
    if not settings.sources:
        return tuple(map(source_of, webhook_providers(providers)))
    try:
        return read_sources(Path(settings.sources).read_text("utf-8"), providers)
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(settings, [f"expected a file of sources, found: {error}"]) from error
    except SourcesInvalid as error:
        raise _invalid(settings, [error.message]) from error


def secret_variables(settings: Settings) -> frozenset[str]:
    """The variables in which sources have secrets; none if there is no file that can be read."""
    try:
        sources = sources_of(settings)
    except HeadwaterError:
        return frozenset()
    places = [source.secret_locations for source in sources if source.secret_locations]
    return frozenset(name for each in places for name in each.variables)


def sources_with_secrets(settings: Settings, environment: Mapping[str, str]) -> tuple[Source, ...]:
    """The sources with their secrets, each of which can be used.

    Errors: SourcesInvalid, with every problem of every source; ProviderInvalid.
    """
    problems: list[str] = []
    found = []
    for source in sources_of(settings):
        faults: list[str] = []
        secrets = _secrets(source, settings, environment, faults)
        faults += _unfit(source, secrets, settings)
        problems += [f"source {source.name}: {fault}" for fault in faults]
        found.append(replace(source, secrets=secrets))
    if problems:
        raise _invalid(settings, problems)
    return tuple(found)


def _secrets(
    source: Source, settings: Settings, environment: Mapping[str, str], faults: list[str]
) -> tuple[str, ...]:
    places = source.secret_locations
    if not places:
        return _of_provider(source, settings)
    found = list(places.inline)
    for name in places.variables:
        found += _listed(f"secret_env, {name}", environment.get(name, "").split(","), faults)
    for name in places.files:
        path = Path(settings.sources).parent / name
        found += _listed(f"secret_file, {path}", _lines(path, faults), faults)
    return tuple(found)


def _of_provider(source: Source, settings: Settings) -> tuple[str, ...]:
    """The secrets of the provider's setting; on this machine that of development without any."""
    name = source.provider.name
    found = settings.secrets_of(name)
    if found or not is_loopback(settings.host):
        return found
    return (secret_of(source.scheme, development_secret(name)),)


def _lines(path: Path, faults: list[str]) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"secret_file: {error}")
        return []


def _listed(place: str, texts: Iterable[str], faults: list[str]) -> list[str]:
    found = [text.strip() for text in texts if text.strip()]
    if not found:
        faults.append(f"{place}: expected a secret, found none")
    return found


def _unfit(source: Source, secrets: tuple[str, ...], settings: Settings) -> Iterable[str]:
    """What is wrong with secrets; says which one, never what it is."""
    ours = [development_secret(name) for name in provider_names()]
    written = (secret_of(source.scheme, secret) for secret in ours)
    known = (*DEVELOPMENT_SECRETS.values(), *_development_secrets(), *ours, *written)
    setting = "" if source.secret_locations else f"{secrets_variable(source.provider.name)}, "
    for number, secret in enumerate(secrets, 1):
        which = f"{setting}secret {number}"
        if not key_of(source.scheme, secret):
            yield f"{which}: expected base64 after {source.scheme.secret_prefix}"
        elif is_loopback(settings.host):
            continue
        elif weakness_of(secret, known):
            yield (
                f"{which}: expected one of your own that cannot be guessed, of at least "
                f"{SECRET_MIN} characters, "
                f"while {PREFIX}HOST is '{settings.host}', which others can reach"
            )


@cache
def _development_secrets() -> tuple[str, ...]:
    sources = read_sources(Path(DEVELOPMENT_SOURCES).read_text("utf-8"), {})
    return tuple(secret for source in sources for secret in source.secret_locations.inline)


def _invalid(settings: Settings, problems: list[str]) -> SourcesInvalid:
    lines = "\n".join(problems)
    named = settings.sources not in ("", DEVELOPMENT_SOURCES)  # the latter is named by nobody
    where = f"{PREFIX}SOURCES, {settings.sources}:\n" if named else ""
    return SourcesInvalid(f"{where}{lines}")
