"""What a model knows, kept in a file across restarts. It knows no pages and no messages."""
