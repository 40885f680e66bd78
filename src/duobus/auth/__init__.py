"""Who may do what: shared access signatures, and the rights that a connection has collected."""

from duobus.auth.authorizer import Authorizer, Grant, Grants, NamespaceRules
from duobus.auth.sas_tokens import SasToken, parse_sas
from duobus.model.access_rules import sign, sign_token

__all__ = [
    "Authorizer",
    "Grant",
    "Grants",
    "NamespaceRules",
    "SasToken",
    "parse_sas",
    "sign",
    "sign_token",
]
