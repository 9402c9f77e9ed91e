"""Users' tokens: JWTs that are verified with the keys of their issuer."""
