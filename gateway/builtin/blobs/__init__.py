"""Blob stores for uploaded files: a folder, or S3."""
