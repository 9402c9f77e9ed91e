"""A stand-in for Terra: a server with Terra's API and generated people and data."""
