"""XML documents of the Atom interface."""
