"""A cluster in which everything fails at random, and what must hold nevertheless."""
