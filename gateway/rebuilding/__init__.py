"""Carrying out rebuilds: a process of its own, started and watched by the projector."""
