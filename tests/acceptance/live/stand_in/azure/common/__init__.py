"""Names that tests import and don't use."""


class AzureHttpError(Exception):
    """Of no use here."""


class AzureConflictHttpError(AzureHttpError):
    """Of no use here."""
