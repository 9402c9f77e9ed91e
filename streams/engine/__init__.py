"""The engine of partition owners, without I/O: state, decisions, and effects."""
