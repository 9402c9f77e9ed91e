"""The OpenAPI document as schemathesis draws from it."""

from typing import Any


def without_long_arrays(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the limits of arrays of a hundred items and more.

    To draw the one item too many takes more time than all other cases together; each such array
    is sent by a test of its own.
    """
    for schema in document["components"]["schemas"].values():
        for described in schema.get("properties", {}).values():
            if described.get("maxItems", 0) >= 100:
                del described["maxItems"]
    return document
