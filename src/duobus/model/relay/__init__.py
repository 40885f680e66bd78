"""The wire of relays (Azure: Hybrid Connections protocol): what relay, listener and sender write to each other."""
