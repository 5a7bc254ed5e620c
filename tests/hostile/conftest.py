"""The run that the tests of commands share serves here too: one for this folder, made when a test asks for it."""

from tests.cli.conftest import _quick, text, trained

__all__ = ["_quick", "text", "trained"]
