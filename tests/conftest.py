"""For all tests: examples of hypothesis have no deadline of their own, since a busy machine is no fault of the code."""

from hypothesis import settings

settings.register_profile("busy machines too", deadline=None)
settings.load_profile("busy machines too")
