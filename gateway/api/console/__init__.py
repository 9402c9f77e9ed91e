"""The console: web pages for operators, rendered from the gateway's own HTTP API."""
