"""How the console talks to a namespace."""
