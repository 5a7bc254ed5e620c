"""What installed packages add: parts, presets and checkpoint families of their own, by an entry point. No torch here."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points

from anyformer.errors import bounded
from anyformer.screen import visible

GROUP = "anyformer"  # of entry points; each names a module that registers what it has by being imported
log = logging.getLogger(__name__)


def installed() -> tuple[EntryPoint, ...]:
    """The entry points of installed packages, by name."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def load_installed() -> None:
    """Import what installed packages add. One that fails is left out, and said so: it must not take the others along."""
    for point in installed():
        try:
            point.load()
        except (Exception, SystemExit) as error:
            package = point.dist.name if point.dist else "an installed package"
            said = visible(" ".join(f"{type(error).__name__}: {error}".split()))
            log.warning("%s", bounded(f"{package}: its entry point {point.name!r} ({point.value}) is left out: {said}"))
