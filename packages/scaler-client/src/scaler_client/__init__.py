"""The client: futures, the io thread and the local cluster."""
