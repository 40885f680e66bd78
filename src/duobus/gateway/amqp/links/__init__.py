"""Links of clients: senders, receivers and holders of sessions."""
