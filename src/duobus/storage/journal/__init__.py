"""The journal of a store in a file: commits as synced appends (decision 0059)."""
