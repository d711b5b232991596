"""The monitor's state, as tables and texts. Pure: it knows neither terminal nor browser."""
