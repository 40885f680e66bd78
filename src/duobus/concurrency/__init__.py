"""What differs between programs with asyncio and programs with threads: two modules with the same names, by hand.

Client code is written once, for asyncio; ``make twins`` derives its synchronous form (docs/decisions/0016).
"""
