"""Postgres: the embedded server, migrations, pools and statements."""
