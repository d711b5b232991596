"""The journal: what the scheduler must not forget, on disk before anybody is told. docs/durability.md is for users."""
