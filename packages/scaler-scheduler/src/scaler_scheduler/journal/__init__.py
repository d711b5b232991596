"""The journal: accepted work, on disk before any peer is told of it. docs/durability.md is the users' page."""
