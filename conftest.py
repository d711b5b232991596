"""For all tests: how long examples of hypothesis take says more of the machine than of us."""

from hypothesis import HealthCheck, settings

settings.register_profile("scaler", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("scaler")
