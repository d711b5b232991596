"""What monitors and Prometheus are sent. Reads the core; changes nothing there."""
