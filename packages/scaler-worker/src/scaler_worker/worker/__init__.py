"""The worker process: runs user code and answers. Knows nothing of the agent."""
