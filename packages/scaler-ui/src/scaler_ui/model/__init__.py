"""From the monitor stream to tables and texts. Pure: knows neither terminal nor browser."""
