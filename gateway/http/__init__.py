"""The HTTP application and its routes, but for those of workflows."""
