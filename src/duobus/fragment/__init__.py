"""The fragment: one part of an entity as a pure state machine."""
