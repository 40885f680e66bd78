"""Message sessions of a fragment: locks, states and deliveries."""
