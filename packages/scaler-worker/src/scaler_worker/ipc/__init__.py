"""What agent, template and workers say to each other on one host: frames, shared words. Bytes only."""
