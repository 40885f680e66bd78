"""An operation of duobus' own over HTTP: the dead-letter desk."""
