"""Terra: what its deliveries are, whom they are about, and the columns that they set."""
