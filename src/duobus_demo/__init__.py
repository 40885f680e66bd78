"""The demonstration: a broker of its own, the official SDK, and a count of what came out.

Talks to the broker over the wire only, like any application; knows nothing of its inside.
"""
