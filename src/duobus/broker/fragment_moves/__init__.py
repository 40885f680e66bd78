"""Moving a fragment from one messaging store to another while it is in use."""
