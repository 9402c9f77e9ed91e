"""Processes that authors' code forks from a code host.

A forked process has a copy of the host: its pipe to the worker, and the event loop or the thread
that called the author's code. It must not continue as a second host. It therefore closes the pipe
at once, and exits when the callback that forked it returns.
"""

import os
import socket

_state = {"forked": False}


def watch_forks(connection: socket.socket) -> None:
    """Close the pipe in every process that is forked from this one from now on."""

    def close_pipe() -> None:
        _state["forked"] = True
        connection.close()

    os.register_at_fork(after_in_child=close_pipe)


def end_if_forked() -> None:
    """End the process if it was forked from a code host."""
    if _state["forked"]:
        os._exit(0)
