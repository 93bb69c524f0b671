"""What may be shown: settings without their secrets, text without control characters.

Of settings whose names are free, a value is shown if it is known to be harmless; everything else is hidden.
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
"""Settings of Spark, Hadoop, Kafka and readers of files whose values hold no secret, once passwords in URLs are taken out."""


def is_secret_key(key: str) -> bool:
    """Whether a key's name says that its value is a secret."""
    return _SECRET_KEY.search(key) is not None


def masked(key: str, value: str) -> str:
    """`value` as it may be shown: hidden whole under a secret key, else without the passwords inside it."""
    if is_secret_key(key):
        return HIDDEN
    value = _USER_INFO.sub(_without_password, value)
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", value)


def setting(name: str, value: str) -> str:
    """The value of a setting with a free name, as it may be shown: hidden unless the name or the value's form is known.

    Options of a JVM are shown but for the values of properties and agents.
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
    """The text of an error without passwords in addresses and in `name=value`, and with its control characters visible."""
    text = _USER_INFO.sub(_without_password, text)
    return printable(_SECRET_IN_MESSAGE.sub(rf"\g<1>{HIDDEN}", text))


_VALUES = re.compile(
    r"=\(.*?\)(?= |,|;|\.|$)|(?<=contains )\(.*\)|(?<=: )\"[^\"]*\"(?=$|\s)"
    r"|(?<!key )(?<!column )(?<!constraint )(?<!table )(?<!index )(?<!name )'[^']*'"
)


def without_values(text: str) -> str:
    """What a database says of a row that it refuses, without the row's values; names of keys and columns stay."""
    return _VALUES.sub("…", text)


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes colours, or turns the direction of writing; not the tabulator and the end of a line."""


def printable(text: str) -> str:
    """`text` with each control character written as its escape, as `\\x1b`: a terminal shows it and does not obey it."""
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def _without_password(found: re.Match[str]) -> str:
    user, colon, _ = found.group().partition(":")
    # Without a colon the part before @ may itself be a token.
    return f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"
