"""Errors of the data source. Errors of the SDK reach the caller as they are."""

from __future__ import annotations


class OptionError(ValueError):
    """An option is unknown, missing or wrong. The text names it; nothing was read or settled."""


class AddressError(RuntimeError):
    """No server answers at the address of the namespace. Nothing was read, sent or settled; try again when it is up."""


class EntityError(RuntimeError):
    """An entity is missing, refuses the request, or does not fit the mode. The text names it and says what to do."""


class CheckpointError(RuntimeError):
    """The checkpoint belongs to something else, or another query uses it. Nothing was settled."""


class DataLoss(RuntimeError):
    """Messages that the plan of a batch names are not there any more. ``failOnDataLoss=false`` goes on without them."""
