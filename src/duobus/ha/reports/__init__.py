"""What paired clients report of their state, and what an operator asks of them, over a queue of the secondary."""
