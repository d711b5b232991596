"""The agent of a host and the workers it forks."""
