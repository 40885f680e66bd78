"""The catalog: which entities there are, and where their fragments are."""
