"""The launcher that starts a whole cluster."""
