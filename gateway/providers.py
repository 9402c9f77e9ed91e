"""The catalogue: the providers that come with Headwater, and those that are installed beside it.

A package adds its own by an entry point of the group `headwater.providers`, which is named as the
provider is:

    [project.entry-points."headwater.providers"]
    github = "headwater_github.provider:GITHUB"

Settings need the names alone, so nothing else is loaded before somebody wants the providers.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from headwater.schemas.errors import Disposition, HeadwaterError

if TYPE_CHECKING:
    from headwater.processors.providers.provider import Provider, Providers

GROUP: Final = "headwater.providers"

#: The providers that come with Headwater, and whose deliveries are posted.
BUILT_IN: Final = ("terra",)


class ProviderInvalid(HeadwaterError):
    """A provider that cannot be used; names the entry point that it is from."""

    disposition = Disposition.HALT
    code = "provider_invalid"


def provider_names() -> tuple[str, ...]:
    """The names of all providers, without loading them."""
    return (*BUILT_IN, *sorted({point.name for point in entry_points(group=GROUP)}))


def installed_providers() -> "Providers":
    """Loads all providers, the house's own among them.

    Errors: ProviderInvalid.
    """
    from headwater.processors.providers.headwater.provider import HEADWATER  # noqa: PLC0415 (see above)
    from headwater.processors.providers.provider import catalogue_of  # noqa: PLC0415 (see above)
    from headwater.processors.providers.terra.provider import TERRA  # noqa: PLC0415 (see above)
    from headwater.schemas.installed_tables import ALL_TABLES  # noqa: PLC0415 (see above)
    from headwater.schemas.installed_tables import GROUP as TABLES_GROUP  # noqa: PLC0415 (see above)

    try:
        found = catalogue_of([HEADWATER, TERRA, *map(_load, entry_points(group=GROUP))])
    except ValueError as error:
        raise ProviderInvalid(f"entry points {GROUP}: {error}") from error
    for provider in found.values():
        for table in {table for kind in provider.types.values() for table in kind.tables}:
            if table not in ALL_TABLES:
                raise ProviderInvalid(
                    f"{provider.name}: expected {table.name} among the tables of Headwater and the "
                    f"entry points {TABLES_GROUP}, found it declared by the provider alone"
                )
    return found


def _load(point: EntryPoint) -> "Provider":
    from headwater.processors.providers.provider import Provider  # noqa: PLC0415 (see above)

    where = f"entry point {point.name} = {point.value} of {GROUP}"
    try:
        found = point.load()
    except Exception as error:
        raise ProviderInvalid(f"{where}: expected a provider, found {error!r}") from error
    if not isinstance(found, Provider) or found.name != point.name:
        raise ProviderInvalid(f"{where}: expected a provider of that name, found {found!r:.100}")
    return found
