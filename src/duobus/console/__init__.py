"""The console: a namespace of duobus or of Azure Service Bus in the browser.

The console knows a namespace only by the requests that every client can make: messages and entities through the
official SDK, and what only duobus offers through its HTTP requests below ``/$duobus``.
"""
