"""A shop as one finds it in a console: orders on their way, payments that failed, a pair, and a store that is away."""
