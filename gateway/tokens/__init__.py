"""Users' tokens: JWTs, checked against the keys of their issuer."""
