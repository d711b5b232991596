"""For all tests: how long an example of hypothesis takes says more of the machine than of us."""

from hypothesis import settings

settings.register_profile("scaler", deadline=None)
settings.load_profile("scaler")
