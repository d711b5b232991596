"""Programs for terminals: scaler_top and scaler_why."""
