"""The gateway: HTTP routes, the command line, and the composition root, which connects packages."""
