"""Headwater: signed webhooks in, typed rows out; long-running work as durable workflows.

The public face for authors of workflows and for programs that use them. The names are listed in
`__init__.pyi`, for type checkers and for this module alike; each is imported when it is first used,
so that a client loads no harness and a code host no HTTP. Nothing inside imports this module. The
command `headwater` runs the parts: see `headwater --help`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
