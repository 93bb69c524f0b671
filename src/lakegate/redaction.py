"""Redacts text for display: settings without their secrets, text without control characters.

Of settings with free names, a value is shown only if it is known to be harmless.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET_KEY = re.compile(
    r"passw|passphrase|pwd|secret|token|sasl|jaas|credential|private|(access|api|account|shared|encryption)[._-]?key"
    r"|(^|[._-])(auth|pass|pw|pem|sas|sig|signature)($|[._-])",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?i)([\w.-]*(?:passw|pwd|secret|token|credential|access_?key|account_?key|signature)[\w.-]*\s*[=:]\s*"
    r"|(?<![\w.-])(?:[\w.-]+[._-])?(?:pass|pw|sig|sas|auth|api_?key)=)(\"[^\"]*\"|'[^']*'|[^\s&;,]+)"
)
_SECRET_IN_MESSAGE = re.compile(
    r"(?i)((?:passw|pwd|secret|signature|account_?key|access_?key|(?<![\w.])sig)[\w.-]*=)([^\s&;,]+)"
)

_FACT = re.compile(
    r"(?i)true|false|-?\d{1,9}(\.\d{1,6})?\s*([kmgt]?b|[kmgt]|ns|us|ms|s|min|h|d|seconds?|minutes?|hours?|days?)?"
)
"""A truth value, a number of at most nine digits, a size or a time."""
_JAVA_OPTIONS = re.compile(r"(?i)javaoptions$")
_HARMLESS_KEY = re.compile(
    r"spark\.(master|app\.(name|id)|jars(\.packages|\.excludes)?|files|archives|submit\.deployMode|home|local\.dir|scheduler\.[\w.]+"
    r"|log\.level|serializer|eventLog\.(enabled|dir)|locality\.wait|memory\.[\w.]+|shuffle\.(?!.*(secret|password))[\w.]+"
    r"|(driver|executor)\.(memory|memoryOverhead|cores|instances|maxResultSize|host|bindAddress|port|extraClassPath|extraLibraryPath)"
    r"|sql\.(?!.*(catalog\.\w+\.))[\w.]+|sql\.catalog\.\w+|databricks\.delta\.[\w.]+|delta\.logStore\.[\w.]+|lakegate\.[\w.]+"
    r"|job\.coordinator\.[\w.]+|dynamicAllocation\.[\w.]+|network\.timeout|rpc\.[\w.]+|ui\.(enabled|port|showConsoleProgress)"
    r"|hadoop\.fs\.s3a\.(bucket\.[\w-]+\.)?(endpoint|endpoint\.region|path\.style\.access|impl|aws\.credentials\.provider"
    r"|connection\.[\w.]+|attempts\.maximum|fast\.upload[\w.]*|multipart\.[\w.]+|threads\.[\w.]+|retry\.[\w.]+)"
    r"|kubernetes\.(namespace|container\.image)|yarn\.queue)"
    r"|(kafka\.)?(bootstrap\.servers|group\.id|client\.id|security\.protocol|auto\.offset\.reset|isolation\.level|acks"
    r"|compression\.type|ssl\.(truststore|keystore)\.(location|type)|ssl\.(ca|certificate)\.location|ssl\.protocol)"
    r"|subscribe|subscribePattern|assign|startingOffsets|endingOffsets|startingTimestamp|startingVersion|groupIdPrefix"
    r"|header|sep|delimiter|quote|escape|encoding|charset|lineSep|dateFormat|timestampFormat|timestampNTZFormat|timeZone|locale"
    r"|nullValue|emptyValue|mode|compression|pathGlobFilter|modifiedBefore|modifiedAfter|rowTag|latestFirst|maxFileAge|cleanSource"
    r"|comment|positiveInf|negativeInf|nanValue|datetimeRebaseMode|int96RebaseMode",
    re.IGNORECASE,
)
"""Settings of Spark, Hadoop, Kafka and file readers whose values hold no secret, once passwords in URLs are removed."""


def is_secret_key(key: str) -> bool:
    """Returns True if a key's name indicates a secret value."""
    return _SECRET_KEY.search(key) is not None


def masked(key: str, value: str) -> str:
    """Returns `value` for display: hidden under a secret key, otherwise without the passwords inside it."""
    if is_secret_key(key):
        return HIDDEN
    value = _USER_INFO.sub(_without_password, value)
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", value)


def setting(name: str, value: str) -> str:
    """Returns the value of a setting with a free name for display: hidden unless the name or the value's form is known.

    JVM options are shown, except for the values of properties and agents.
    """
    if is_secret_key(name):
        return HIDDEN
    if _JAVA_OPTIONS.search(name):
        if any(mark in value for mark in "\"'\\"):
            return HIDDEN
        return " ".join(one if one.startswith(("-X", "--add-")) else _option(one) for one in value.split())
    if _FACT.fullmatch(value) or _HARMLESS_KEY.fullmatch(name):
        return masked(name, value)
    return HIDDEN


def _option(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}={HIDDEN}" if equals else option if option.startswith("-") else HIDDEN


def message(text: str) -> str:
    """Returns the text of an error without passwords in URLs and `name=value`, and with visible control characters."""
    text = _USER_INFO.sub(_without_password, text)
    return printable(_SECRET_IN_MESSAGE.sub(rf"\g<1>{HIDDEN}", text))


_VALUES = re.compile(
    r"=\(.*?\)(?= |,|;|\.|$)|(?<=contains )\(.*\)|(?<=: )\"[^\"]*\"(?=$|\s)"
    r"|(?<!key )(?<!column )(?<!constraint )(?<!table )(?<!index )(?<!name )'[^']*'"
)


def without_values(text: str) -> str:
    """Returns a database's error about a row, without the row's values; names of keys and columns stay."""
    return _VALUES.sub("…", text)


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change colours, or change the writing direction; not the tabulator and the newline."""


def printable(text: str) -> str:
    """Returns `text` with control characters as escapes, as `\\x1b`: a terminal shows them and does not obey them."""
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def _without_password(found: re.Match[str]) -> str:
    user, colon, _ = found.group().partition(":")
    # Without a colon the part before @ may itself be a token.
    return f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"
