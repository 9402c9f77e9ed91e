"""Settings of all processes, and what is derived from them."""
