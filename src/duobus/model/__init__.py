"""Plain data that several rooms share."""
