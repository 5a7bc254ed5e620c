"""What the parts of an architecture mean together: what cannot work, what follows, and where it stands in the field."""

from anyformer.checks.check import check
from anyformer.checks.field_comparison import FieldPosition, field_comparison
from anyformer.checks.finding import Finding, Severity

__all__ = ["Finding", "FieldPosition", "Severity", "check", "field_comparison"]
