"""The object storage server."""
