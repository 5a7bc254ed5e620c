"""What the parts of an architecture mean together: what cannot work, what follows, and where it stands in the field."""

from anyformer.checks.check import check
from anyformer.checks.finding import Finding, Severity
from anyformer.checks.standing import Place, standing

__all__ = ["Finding", "Place", "Severity", "check", "standing"]
