"""``/$duobus``: what those who run a server ask of it, and what a console shows of it."""
