"""Code hosts: the processes that run authors' code, and how they load it."""
