"""`scaler_worker_manager`: the kinds of providers that start and stop agents. Knows nothing of tasks."""
