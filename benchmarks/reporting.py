"""How a child tells the benchmark what it did: one JSON object a line on its standard output."""

import json
import sys


def report(**fields: object) -> None:
    """Prints a report."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
