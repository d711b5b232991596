"""The template process, from which workers are forked, and the agent's side of it."""
