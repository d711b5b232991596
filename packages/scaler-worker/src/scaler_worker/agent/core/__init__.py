"""AgentCore and its parts: what the agent of one host decides. Pure: no clock, no socket, no process."""
