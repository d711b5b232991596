"""The monitors."""
