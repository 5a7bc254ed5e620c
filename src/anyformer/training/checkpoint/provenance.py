"""Provenance of a run besides its specification and recipe: the code, the versions, the machine, the command."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from anyformer.version import __version__

_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")


def code_fingerprint() -> str:
    """A hash of every source file of this package, by name and content."""
    package = Path(__file__).resolve().parent.parent.parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def provenance() -> dict[str, Any]:
    """Date (UTC), command line, versions and machine, as JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": {"python": platform.python_version(), "anyformer": __version__} | _versions(),
        "machine": {
            "name": platform.node(),
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "accelerators": _accelerators(),
        },
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _accelerators() -> list[str]:
    torch = sys.modules.get("torch")  # not imported for this alone
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
