"""The audit log, as rows of which each vouches for those before it."""
