"""HTTP requests about what other servers own."""
