"""Placeholder, being written."""
from reference.idist.backends.serial import SerialBackend
class B(SerialBackend):
    @classmethod
    def missing(cls, name): return "not written yet"
BACKEND = B
