"""The version, stated once: the build, `anyformer --version` and a run's record all read it here."""

__version__ = "0.1.0"
