"""Claims: messages that are deferred under an id of the client's, taken and settled as a whole."""
