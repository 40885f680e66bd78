"""Working through dead letters from the client's side: by a server that has the service for it, else by the SDK.

The command line and the console share this room. It needs the wire form of values and the language of filters, which
are the same on both sides; of the server it needs nothing else.
"""
