"""What is looked up in a fragment for people: which messages and sessions are locked, and what sessions there are."""
