"""The runtime API: sending, receiving and settling over HTTP (HTTP contract, part B)."""
