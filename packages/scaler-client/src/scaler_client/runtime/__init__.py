"""The threads behind a client, and its connection. Knows nothing of the public classes."""
