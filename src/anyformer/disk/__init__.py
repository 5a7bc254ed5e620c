"""Writing that a killed process or a full disk cannot leave half done."""
