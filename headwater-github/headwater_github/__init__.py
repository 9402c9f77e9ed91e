"""GitHub for Headwater: pushes and pull requests as rows of Postgres."""
