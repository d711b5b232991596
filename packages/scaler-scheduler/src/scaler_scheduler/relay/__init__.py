"""The relay: a scheduler of the agents behind it, and one agent of the scheduler above it."""
