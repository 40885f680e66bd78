"""The management API: Atom XML over HTTP (Azure: Service Bus REST API)."""
