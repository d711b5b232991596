"""Stored objects as a client sees them: handles, the store, rebuilding lost ones. Knows no future and no call."""
