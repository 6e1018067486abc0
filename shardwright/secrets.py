"""Secrets in the text of callers, such as the key of an API. They do not leave the machine of a
caller who has this client, and the service, which uses the same rules, neither repeats nor stores
them.

People send launch commands, scripts and logs as they are, with --wandb-api-key and HF_TOKEN in
them. A secret is told by the name that it has, or by a shape of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MOST_OF_NAME = 100
MASK = "REDACTED"
"""The word that replaces a secret. It is a plain word to a shell and to YAML."""
_LAST_WORD = re.compile(
    r"\w*(?:token|secrets?|passwords?|passwd|passphrase|credentials?)"
    r"|\w*(?:api|secret|access|private|auth)key",
    re.ASCII,
)
"""The last word of names of secrets."""
_PLAIN_KEYS = {"cache", "data", "foreign", "image", "json", "label", "mask", "primary", "query"}
_PLAIN_KEYS |= {"sort", "text"}
"""Words before "key" that make it a name of something that opens nothing."""
_PLAIN_TOKENS = {"audio", "bos", "cls", "end", "eod", "eos", "image", "mask", "middle", "pad"}
_PLAIN_TOKENS |= {"per", "prefix", "sep", "special", "start", "suffix", "unk", "video"}
"""Words before "token" that make it one of a tokenizer."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", re.ASCII)
_END_OF_NAME = re.compile(
    r"(?:key|token|secret|passw(?:or)?d|passphrase|credential)s?[\d_]{0,9}(?P<quote>\\?[\"']?)"
    r"(?P<join>=|[ \t]{0,9}:[ \t]{0,9}|[ \t]{1,9}=[ \t]{0,9}|[ \t]{1,9}\.{1,99}[ \t]{1,9}"
    r"|[ \t]{0,9},?(?:[ \t]|\\?\n){1,99}(?!-))",
    re.ASCII | re.IGNORECASE,
)
"""The end of a name, and what joins it to its value."""
_NAME = re.compile(r"[\w.-]*\Z", re.ASCII)
_VALUE = re.compile(
    r"\\(?P<escaped>[\"']).*?(?:\\(?P=escaped)|$)"
    r"|(?:\"(?:[^\"\\\n]|\\.)*(?:\"|$)|'[^'\n]*(?:'|$))+"
    r"|(?:[^\s\"',;&|)\]}\\]|\\(?=\S)|[,)\]}](?=[^\s\"',;&|)\]}]))+",
    re.MULTILINE,
)
"""A value in quotes that are escaped, in quotes, or in none."""
_NO_SECRET = re.compile(r"\$[A-Za-z_({]|(?:none|null|true|false|<[^>]{0,99}>|)$", re.IGNORECASE)
"""Values that tell nothing."""
_NUMBER = re.compile(r"[\d.]+")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|nvapi-[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}(?:\.[\w-]*)?)",
    re.ASCII,
)
"""Keys of Hugging Face, OpenAI and others, GitHub, GitLab, Slack, NVIDIA, Amazon and Google, and
JSON Web Tokens (RFC 7519)."""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL)
_AUTHORIZATION = re.compile(
    r"(\bauthorization\\?[\"']?\s{0,9}[:=]\s{0,9}\\?[\"']?(?:[a-z]{1,20}\s{1,9})?"
    r"|\bbearer\s{1,9}(?=\S{0,99}\d))[\w.~+/=-]{4,}",
    re.ASCII | re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(://[^\s/:@'\"]{0,99}:)[^\s/@'\"]{1,500}(?=@)")


def mask_secrets(text: str) -> str:
    """Returns the text with a mask in place of every secret."""
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _AUTHORIZATION.sub(rf"\1{MASK}", text)
    text = _IN_ADDRESS.sub(rf"\1{MASK}", text)
    text = _SHAPES.sub(MASK, text)
    kept = []
    at = 0
    for named in _END_OF_NAME.finditer(text):
        if named.start() < at or not _may_have_secret(text, named):
            continue
        value = _VALUE.match(text, named.end())
        if value is not None:
            kept += [text[at : value.start()], _masked(named, value.group())]
            at = value.end()
    return "".join([*kept, text[at:]])


def mask_items(items: Sequence[object]) -> list[object]:
    """Returns the items of a list, such as command-line arguments, with a mask in place of every
    secret. An item after a flag such as --wandb-api-key is one."""
    masked: list[object] = []
    flag = ""
    for item in items:
        if isinstance(item, str):
            masked.append(MASK if names_secret(flag) and item[:1] != "-" else mask_secrets(item))
        else:
            masked.append(item)
        flag = item if isinstance(item, str) and re.fullmatch(r"--?[A-Za-z][\w.-]*", item) else ""
    return masked


def names_secret(name: str) -> bool:
    """Returns whether a name is that of a secret, such as --wandb-api-key, HF_TOKEN or apiKey."""
    words = [word.lower() for word in _WORD.findall(name)]
    kind, last = ["", "", *words][-2:]
    if last in ("key", "keys"):
        return kind == "api" or (last == "key" and kind not in {"", *_PLAIN_KEYS})
    return bool(_LAST_WORD.fullmatch(last)) and kind not in _PLAIN_TOKENS


def _may_have_secret(text: str, named: re.Match[str]) -> bool:
    """Returns whether the name that ends in `named` is that of a secret with a value behind it. A
    space joins a value to a flag only; any other name needs a mark such as "=" or ":" between."""
    before = _NAME.search(text[max(named.start() - _MOST_OF_NAME, 0) : named.start()])
    name = (before.group() if before else "") + named.group().removesuffix(named["join"])
    is_joined = any(mark in named["join"] for mark in "=:.")
    return (is_joined or name.startswith("-")) and names_secret(name)


def _masked(named: re.Match[str], value: str) -> str:
    """Returns the mask, in the quotes of the value, or in those of its name where a JSON value has
    none. A number is no secret unless it is a password, and a placeholder such as $TOKEN never is:
    both are returned unchanged."""
    bare = value.strip("\\\"'")
    is_number = _NUMBER.fullmatch(bare) and not named.group().lower().startswith("pass")
    if is_number or _NO_SECRET.match(bare):
        return value
    quotes = re.match(r"\\?[\"']", value)
    mark = quotes.group() if quotes else named["quote"]
    return f"{mark}{MASK}{mark}"
