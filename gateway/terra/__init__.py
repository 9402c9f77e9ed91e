"""Terra's API v2, as Headwater calls it: the client, its pace, and what goes wrong."""
