"""Scaling policies: how many workers each worker manager should have. Pure: knows neither the core nor clocks."""
