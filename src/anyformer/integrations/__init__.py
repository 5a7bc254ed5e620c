"""Models of ours in others' tools, each explicitly imported: nothing else of the package knows them."""
