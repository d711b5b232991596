"""The template process, from which workers are forked, and the agent's link to it. Must not import the agent."""
