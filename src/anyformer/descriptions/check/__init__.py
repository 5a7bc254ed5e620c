"""What the parts of an architecture mean together: errors, consequences, notes, and its place in the field."""
