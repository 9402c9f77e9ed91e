"""The console: pages for people, made of what the house's own HTTP API answers."""
