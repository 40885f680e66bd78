"""A raw AMQP 1.0 load generator.

It imports nothing of duobus, so that the same generator drives any AMQP 1.0 broker and shares no fault with ours. One
process, no threads, no asyncio: every link has a connection of its own and `poll` tells which one to read.

Run `python -m benchmarks.load --help` from the root of the project.
"""
