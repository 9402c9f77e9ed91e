"""The graphs that are deployed, as rows."""
