"""The version, in a file of its own so that nothing has to import the root package for it."""

__version__ = "0.2.0"
