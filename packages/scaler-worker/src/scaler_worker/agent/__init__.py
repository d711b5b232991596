"""The agent's process: its link, its workers' channels, its clock. The decisions are in `core`."""
