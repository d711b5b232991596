"""AgentCore and its parts: the decisions of one host's agent. Pure: no clock, no socket, no process."""
