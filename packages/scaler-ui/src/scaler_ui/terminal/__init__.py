"""Programs for terminals: scaler_top, scaler_why and scaler_profile."""
