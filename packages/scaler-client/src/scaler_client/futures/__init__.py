"""Futures, those who wait for them, and the outcomes they hold. Knows no thread of the client."""
