"""Which values must never be printed, and what is printed in their place."""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET_KEY = re.compile(
    r"passw|passphrase|pwd|secret|token|sasl|jaas|credential|private|(access|api|account|shared|encryption)[._-]?key"
    r"|(^|[._-])auth($|[._-])",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?i)([\w.-]*(?:passw|pwd|secret|token|credential|access_?key|signature)[\w.-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&;,]+)"
)


def is_secret_key(key: str) -> bool:
    """Whether a key's name says that its value is a secret."""
    return _SECRET_KEY.search(key) is not None


def masked(key: str, value: str) -> str:
    """`value` as it may be shown: hidden whole under a secret key, else without the passwords inside it."""
    if is_secret_key(key):
        return HIDDEN
    value = _USER_INFO.sub(_without_password, value)
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", value)


def _without_password(found: re.Match[str]) -> str:
    user, colon, _ = found.group().partition(":")
    # Without a colon the part before @ may itself be a token.
    return f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"
