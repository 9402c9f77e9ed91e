"""Headwater: signed webhooks in, typed rows out; long-running work as durable workflows.

Public API for workflow authors and for client programs. Its names are listed in `__init__.pyi`, for
type checkers and for this module. A name is imported when it is first used, so that a client loads
no test harness and a code host no HTTP client. No module of Headwater imports this module. The
command `headwater` runs the processes: see `headwater --help`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
