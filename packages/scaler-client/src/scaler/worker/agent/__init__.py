"""Old import paths."""
