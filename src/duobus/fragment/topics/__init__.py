"""Topics of a fragment: one copy of a message for each subscription."""
