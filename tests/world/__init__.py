"""A whole cluster of real cores in one process, on a clock of its own."""
