"""The runtime API: sending, receiving and settling over HTTP (Azure: Service Bus REST API)."""
