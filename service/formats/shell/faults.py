"""Faults of a launch script or command line (the *text*), and of values in it that nobody can know.

A value is *undefined* where a variable is left in it that the text does not set, such as $TP, or a
command in $( ), since no command is run.
"""

from __future__ import annotations

import re

from models.errors import Invalid

PATH = "launch.arguments"
"""The field that errors of a launch configuration name."""
MOST_SHOWN = 80
"""Characters of a text that an error or an answer repeats: one line of a terminal."""
_UNDEFINED = re.compile(
    r"\$\(\([^A-Za-z_)]{0,200}(?P<summed>[A-Za-z_]\w*)|\$(?:\{[#!]?)?(?P<named>\w+|[@*#?])|\$\(|`",
    re.ASCII,
)
"""The first variable of a sum $(( )), a variable, or the beginning of a command."""


def invalid_launch(value: object, rule: str) -> Invalid:
    """Returns the error for a launch that breaks a rule. `value` is the word or the setting that
    breaks it; None means the launch as a whole."""
    return Invalid(PATH, value, rule)


class Undefined(Invalid):
    """A value has a variable in it that the text does not define; `variable` is its name, or (…)
    for what a command would print."""

    def __init__(self, variable: str, value: str, rule: str) -> None:
        super().__init__(PATH, value, rule)
        self.variable = variable

    def with_reason(self, why: str) -> Undefined:
        """Returns the same fault with the reason why nobody can know the value."""
        return Undefined(self.variable, str(self.value), f"{self.rule} ({why})")


def shortened(text: str) -> str:
    """Returns a text cut to what messages show, in characters that every database stores: lone
    surrogates and NUL, which PostgreSQL refuses, are written as escapes."""
    short = text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
    return short.encode("utf-8", "backslashreplace").decode().replace("\0", "\\u0000")


def undefined_variables(word: str) -> list[str]:
    """Returns the variables in a word whose values the text does not define: ["TP"] for
    "--tp=$TP", and of a sum $((2*TP)) the first. "(…)" stands for a command."""
    return [match["summed"] or match["named"] or "(…)" for match in _UNDEFINED.finditer(word)]


def require_defined(name: str, word: str) -> None:
    """Raises Undefined where the value `word` of the setting `name` contains a variable that the
    text does not define."""
    undefined = undefined_variables(word)
    if undefined:
        rule = (
            f"${undefined[0]} is not defined in the text that was sent: {_cure(undefined[0])},"
            " write its value in its place, or add the line that sets it"
        )
        raise Undefined(undefined[0], f"{name} {word[:MOST_SHOWN]}", rule)


def require_arguments_defined(word: str) -> None:
    """Raises Undefined where a word in the place of a flag is a variable that the text does not
    define, because it could hold any flags. $@ and $*, the script's own arguments, may pass."""
    undefined = undefined_variables(word)
    if undefined and word[0] in "$`" and undefined[0] not in "@*":
        rule = (
            f"is not defined in the text that was sent, and may hold any arguments:"
            f" {_cure(undefined[0])} (empty where it holds none), write them in its place, or add"
            " the line that sets it"
        )
        raise Undefined(undefined[0], word[:MOST_SHOWN], rule)


def _cure(variable: str) -> str:
    """Returns advice on how to send the value of a variable with the text."""
    if re.fullmatch(r"[A-Za-z_]\w*", variable, re.ASCII):
        return f'send it as launch.environment {{"{variable}": "…"}}'
    if variable.isdecimal():
        return (
            "send the command that starts the script, with its arguments, and the script in"
            " launch.files"
        )
    return "nothing is run here: put it into a variable and send that in launch.environment"
