"""Blobs: files that users upload, in a folder or in S3."""
