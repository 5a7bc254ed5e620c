"""What may be shown on a terminal of text that a model wrote: it must not steer the terminal."""

from __future__ import annotations

import re

# C0 but tab and line feed, DEL, C1: escape sequences move the cursor, rename the window, hide what was written.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""Return the text with every control character but tab and line feed written out, as in \x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
