"""The web pages: scaler_ui."""
