"""The monitor's state, as tables and texts. Pure: knows neither terminal nor browser."""
