"""HTTP client of the workflow service, for programs outside Headwater.

Responses are described in `schemas.answers`, refused commands in `schemas.failures`.
"""
