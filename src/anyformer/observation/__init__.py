"""What a pass really does, seen by running it on fake tensors: operators, bytes kept, bytes alive."""
