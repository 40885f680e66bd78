"""The language of filters and actions (Azure: SQL filter syntax), as lark reads it."""

from __future__ import annotations

from typing import Final

# Keywords end where no letter follows, and a NAME is none of them, so that no lexer state ever has to choose.
GRAMMAR: Final = r"""
filter: _or
action: statement (_separator? statement)* ";"?
_separator: ";" | ","
statement: SET property EQUAL sum  -> set_statement
         | REMOVE property         -> remove_statement

_or: or_
?or_: and_ (_OR and_)*
?and_: not_ (_AND not_)*
?not_: test
     | NOT not_                              -> negation
?test: sum
     | sum (EQUAL | COMPARISON) sum          -> compare
     | sum [NOT] IN "(" sum ("," sum)* ")"   -> in_list
     | sum [NOT] LIKE sum [_ESCAPE sum]      -> like
     | sum IS [NOT] NULL                     -> is_null
     | EXISTS "(" property ")"               -> exists
?sum: term (SUM_SIGN term)*
?term: unary (TERM_SIGN unary)*
?unary: primary
      | SUM_SIGN unary                       -> signed
?primary: INTEGER                            -> integer
        | DOUBLE                             -> double
        | STRING                             -> string
        | (TRUE | FALSE | NULL)              -> word
        | PARAMETER                          -> parameter
        | NAME "(" [sum] ")"                 -> call
        | property
        | "(" or_ ")"                        -> group
property: [NAME "."] (NAME | BRACKETED | QUOTED)

_AND: /AND(?!\w)/i
_OR: /OR(?!\w)/i
NOT: /NOT(?!\w)/i
IN: /IN(?!\w)/i
LIKE: /LIKE(?!\w)/i
_ESCAPE: /ESCAPE(?!\w)/i
IS: /IS(?!\w)/i
EXISTS: /EXISTS(?!\w)/i
TRUE: /TRUE(?!\w)/i
FALSE: /FALSE(?!\w)/i
NULL: /NULL(?!\w)/i
SET: /SET(?!\w)/i
REMOVE: /REMOVE(?!\w)/i
EQUAL: "="
COMPARISON: "<>" | "!=" | "<=" | ">=" | "<" | ">"
SUM_SIGN: "+" | "-"
TERM_SIGN: "*" | "/" | "%"
DOUBLE: /[0-9]+(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)/
INTEGER: /[0-9]+/
STRING: /'([^']|'')*'/
BRACKETED: /\[([^\]]|\]\])*\]/
QUOTED: /"([^"]|"")*"/
PARAMETER: /@[^\W\d_]\w*/
NAME: /(?!(AND|OR|NOT|IN|LIKE|ESCAPE|IS|EXISTS|TRUE|FALSE|NULL|SET|REMOVE)(?!\w))[^\W\d_]\w*/i
%ignore /[ \t\r\n]+/
"""

#: What an error calls the terminals; those that lark names itself included.
TERMINALS: Final = {
    "$END": "the end",
    "_AND": "AND",
    "_OR": "OR",
    "_ESCAPE": "ESCAPE",
    "EQUAL": "=",
    "COMPARISON": "a comparison",
    "SUM_SIGN": "+ or -",
    "TERM_SIGN": "*, / or %",
    "DOUBLE": "a number",
    "INTEGER": "a number",
    "STRING": "a 'text'",
    "BRACKETED": "a property",
    "QUOTED": "a property",
    "NAME": "a property",
    "PARAMETER": "a @parameter",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "SEMICOLON": "a semicolon",
    "DOT": "a dot",
}
