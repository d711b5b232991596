"""StorageCore and its parts: which bytes are kept for whom. No IO but through the Segments that it is given."""
