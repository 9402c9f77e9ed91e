"""Client of Terra's API v2, with rate limits, retries and errors."""
