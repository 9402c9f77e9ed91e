"""Environment variables that authors' code sees: an allow list.

The environment of Headwater's processes contains credentials: those of Postgres, of the bucket of
lab reports, of the sources of deliveries. Authors' code runs in child processes, which get none of
them unless an operator names the variable.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

#: Headwater's own settings, including keys. No pattern matches these.
_SETTINGS: Final = "HEADWATER_"
#: Needed by programs and libraries to find files, language and time zone.
_ALWAYS: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "TZDIR", "LANG", "LANGUAGE", "LC_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
#: What pip and uv read besides, among it the addresses and credentials of package indexes.
_INSTALLERS: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "LD_LIBRARY_PATH", "DYLD_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("PIP_*", "UV_*", "XDG_*", "NETRC", "*_PROXY", "*_proxy"),
)
#: Would make an interpreter import packages of another environment.
_OF_INTERPRETERS: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def environment_of_apps(passed: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that authors' code sees.

    Args:
        passed: Names that an operator has added; `*` matches any characters.
    """
    return _matching((*_ALWAYS, *passed))


def environment_of_installer() -> dict[str, str]:
    """Return the variables that an installer of packages sees."""
    return _matching(_INSTALLERS)


def in_virtual_environment(variables: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return variables for a process of a virtual environment's interpreter."""
    kept = {name: value for name, value in variables.items() if name not in _OF_INTERPRETERS}
    path = os.pathsep.join(filter(None, (str(python.parent), kept.get("PATH"))))
    return kept | {"VIRTUAL_ENV": str(python.parent.parent), "PATH": path}


def _matching(patterns: Collection[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_SETTINGS)
        and any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def hint_of_withheld(error: str, seen: Collection[str] | Mapping[str, str]) -> str:
    """Return a hint about variables that an error quotes and that apps do not see, or "".

    Args:
        error: Why an app cannot be imported, with its traceback.
        seen: The variables that the app saw.
    """
    quoted = re.findall(r"""["']([A-Za-z_][A-Za-z0-9_]*)["']""", error)
    withheld = [name for name in dict.fromkeys(quoted) if name in os.environ and name not in seen]
    names = [name for name in withheld if not name.startswith(_SETTINGS)]
    if not names:
        return ""
    setting = ",".join(names)
    return (
        f"\nApps do not see {', '.join(names)}: HEADWATER_APP_ENVIRONMENT={setting} passes it on."
    )
