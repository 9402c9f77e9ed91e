"""The house as its own provider: what it learns becomes deliveries that nobody can post."""
