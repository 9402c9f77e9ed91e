"""HTTP routes and middleware, except the workflow routes."""
