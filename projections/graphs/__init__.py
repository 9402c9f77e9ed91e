"""The deployed graphs, as rows."""
