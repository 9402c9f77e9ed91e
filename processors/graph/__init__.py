"""Graphs: workflows as definitions, and the pure planners that move tokens through them."""
