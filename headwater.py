"""Headwater: signed webhooks in, typed rows out.

The public face for authors of workflows and tools: names are re-exported here, from wherever they
live, and nothing inside imports this module. It is run by the command `headwater`, which
`headwater --help` explains.
"""

__all__ = ()
