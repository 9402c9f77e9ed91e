"""The HTTP API: webhooks, `/v1`, `/admin`, `/api/workflows` and the console."""
