"""API of workflow authors: what they import, and how their values are encoded and checked."""
