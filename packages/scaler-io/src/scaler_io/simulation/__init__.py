"""A network in memory with its own clock, for tests of whole clusters. Pure: no sockets, no time."""
