"""The relay: listeners hold a control channel, senders come by WebSocket or HTTP, and the relay joins the two."""
