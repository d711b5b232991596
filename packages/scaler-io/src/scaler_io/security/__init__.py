"""Keys: who may connect to a cluster's services, and in which role. Knows no sockets."""
