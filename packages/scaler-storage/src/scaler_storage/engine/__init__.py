"""The object store as an engine: it does its IO through the injected Segments and knows no socket, path or process."""
