"""What a namespace is like over time: counts that the console reads, their differences, and what is unwell in them."""
