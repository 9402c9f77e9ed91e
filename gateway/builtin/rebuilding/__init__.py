"""Rebuilds of projections, in a child process of the projector."""
