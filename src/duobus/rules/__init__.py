"""Subscription rules: which messages a subscription takes, and what it changes on its copy (Azure: topic filters).

    compile_rule(description)  -> Rule                 once, when a rule is made; every mistake in it is reported here
    RuleSet({source: rules})   kept by the topic's fragment, changed rule by rule
    rules.match(MessageView)   -> Match                once per message: who gets a copy, and which copies are altered
    rules.match_payload(...)   -> Match                the same, with a memo for messages with the same properties

``typed_value`` and ``amqp_value`` turn the values of parameters and correlation filters from AMQP into what a
description holds, and back.

Pure: no I/O, no clock, and randomness (``newid()``) only from the function that the rule set is given.
"""

from duobus.model.overlay import Overlay
from duobus.rules.effort import EFFORT_MAX, EFFORT_OF_A_MESSAGE
from duobus.rules.language.literals import amqp_value, typed_value
from duobus.rules.message_view import MessageView
from duobus.rules.rule import AlteredCopy, Match, Rule, compile_rule
from duobus.rules.ruleset import RuleSet

__all__ = [
    "compile_rule",
    "Rule",
    "RuleSet",
    "MessageView",
    "Match",
    "AlteredCopy",
    "Overlay",
    "typed_value",
    "amqp_value",
    "EFFORT_MAX",
    "EFFORT_OF_A_MESSAGE",
]
