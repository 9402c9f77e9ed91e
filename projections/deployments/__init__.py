"""The deployments of code, as rows."""
