"""The worker process: it runs user code and writes a record per run. Must not import the agent or the template."""
