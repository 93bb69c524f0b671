"""Explains in plain words what S3, DynamoDB and the machine refuse, with advice: errors come wrapped in Hadoop's and Spark's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from lakegate.errors import LakegateError, Unavailable


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a refused request."""

    words: str
    advice: str


_CREDENTIALS: Final = "docs/how-to/use-s3.md, Credentials"
REASONS: Final = (
    (
        "RequestTimeTooSkewed|Signature expired|Signature not yet current",
        "the clocks of this machine and the server differ too much",
        "Set this machine's clock by NTP",
    ),
    (
        "ExpiredToken|provided token has expired|token included in the request is expired",
        "the credentials have expired",
        "Renew them, and start again",
    ),
    (
        "InvalidAccessKeyId|SignatureDoesNotMatch|UnrecognizedClient|security token included in the request is invalid"
        "|No AWS Credentials|Unable to load credentials",
        "there are no credentials, or the server does not know them",
        f"Give them as in {_CREDENTIALS}",
    ),
    (
        "NoSuchBucket|bucket does not exist|UnknownStoreException",
        "the bucket does not exist",
        "Correct the path, or make the bucket",
    ),
    (
        "PermanentRedirect|AuthorizationHeaderMalformed|authorization header is malformed|is wrong; expecting"
        "|Status Code: 301|IllegalLocationConstraint",
        "the bucket is in another region",
        "Set spark.hadoop.fs.s3a.endpoint.region to the bucket's",
    ),
    (r"not authorized to perform: ([\w:]+)", "permission is missing: {0}", "Add the action to the policy"),
    (
        r"DynamoDB did not (\w+)[^:]*: .*(?:AccessDenied|not authorized|Status Code: 403)",
        "permission is missing: dynamodb:{0}",
        "Add the action to the policy",
    ),
    (
        r"DynamoDB did not (?!CreateTable|DescribeTable)\w+ .*(?:ResourceNotFound|not found)",
        "the table of entries does not exist in this region",
        "Correct ddb.tableName and ddb.region",
    ),
)
"""Pattern in a server's error → plain words → advice; the first match counts."""

LINE_MAX: Final = 500
"""At most this many characters of an error's line are shown."""
OF_THE_MACHINE: Final = (
    (
        "No space left on device|Disk quota exceeded|database or disk is full",
        "a disk is full",
        "Make room for the table, the storage, the checkpoint and Spark's temporary files (spark.local.dir), and start again",
    ),
    ("Read-only file system", "a file system can only be read", "Make it writable, and start again"),
    ("Too many open files", "no more files can be opened", "Raise the limit (ulimit -n), and start again"),
)
"""The same for refusals by the machine itself, whatever was to be written."""

DENIED: Final = re.compile(r"AccessDenied|Access Denied|Forbidden|Status Code: 403")
OPERATION: Final = re.compile(r": ([\w#() -]{1,60}?)(?: \S{1,500} at \d+)? on [^\n]{1,500}?: software\.amazon")
"""The place of an operation's name in S3A's errors: `PATH: Writing Object on PATH: software.amazon…`."""
ACTIONS: Final = (
    ("copy", "s3:GetObject, s3:PutObject"),
    ("writ|put|upload|create", "s3:PutObject"),
    ("delet|remov", "s3:DeleteObject"),
    ("list", "s3:ListBucket"),
    ("open|read|seek", "s3:GetObject"),
    # S3A asks for a file first, then for a folder; the answers are the same.
    ("status|exists|metadata|head", "s3:GetObject or s3:ListBucket"),
)
"""A word in S3A's name of an operation → the action's name in a policy; the first match counts."""

OF_AWS: Final = re.compile(r"software\.amazon\.awssdk|org\.apache\.hadoop\.fs\.s3a|\bs3a://|lakegate: DynamoDB did not")
"""An error without one of these does not come from S3 or DynamoDB, whatever else its text contains."""


def reason(text: str) -> Reason | None:
    """Returns the reason of a refused request; None if the text does not show it."""
    for pattern, words, advice in REASONS:
        if found := re.search(pattern, text, flags=re.IGNORECASE):
            return Reason(words.format(*found.groups()), advice)
    operation = OPERATION.search(text)
    if operation is None or DENIED.search(text) is None:
        return None
    name = operation[1].strip()
    action = next((action for word, action in ACTIONS if re.search(word, name, flags=re.IGNORECASE)), None)
    missing = f"permission is missing for: {name}" if action is None else f"permission is missing: {action} ({name})"
    return Reason(missing, "Add the action to the policy")


def described(text: str) -> str:
    """Returns an error of S3 or DynamoDB in plain words, followed by its first line."""
    line = next(iter(text.strip().splitlines()), "no reason was given")
    found = reason(text)
    return line if found is None else f"{found.words} ({line})"


def refused_by_machine(texts: list[str]) -> Unavailable | None:
    """Returns an error in our words if the machine refused to write: disk full, read-only, or too many open files; else None."""
    for text in reversed(texts):
        for pattern, words, advice in OF_THE_MACHINE:
            line = next((line for line in text.splitlines() if re.search(pattern, line)), None)
            if line is not None:
                said = re.sub(r"^(?:[\w$]+\.)+[\w$]+: ", "", line.strip())[:LINE_MAX]
                return Unavailable(f"{words}, and the batch or statement was not written", advice=advice, detail=said)
    return None


def refusal(error: BaseException) -> Unavailable | None:
    """Returns an error in our words if S3, DynamoDB or this machine refused a request; None for others, and for our own errors."""
    if isinstance(error, LakegateError):
        return None
    texts = texts_of(error)
    if (machine := refused_by_machine(texts)) is not None:
        machine.__cause__ = error
        return machine
    fitting = [text for text in texts if OF_AWS.search(text) and reason(text) is not None]
    if not fitting:
        return None
    # The innermost text that names the operation: outer texts repeat it at length, inner texts do not name it.
    text = next((text for text in reversed(fitting) if OPERATION.search(f": {text}")), fitting[-1])
    found = reason(text)
    assert found is not None
    service = "DynamoDB" if "DynamoDB did not" in text else "S3"
    line = text.strip().splitlines()[0]
    refused = Unavailable(f"{service} refused a request: {found.words}", advice=found.advice, detail=line)
    refused.__cause__ = error
    return refused


@contextmanager
def in_plain_words() -> Iterator[None]:
    """Replaces a refusal by S3, DynamoDB or the machine with an error in our words; other errors pass unchanged.

    Raises:
        Unavailable: A request was refused.
    """
    try:
        yield
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        for note in getattr(error, "__notes__", ()):
            refused.add_note(note)
        raise refused from error


def known_of(error: BaseException) -> str:
    """Returns the known text of a JVM error without a call to the JVM, which may have ended."""
    said = getattr(error, "_desc", None) or getattr(error, "errmsg", None)
    return type(error).__name__ if said is None else str(said)


def texts_of(error: BaseException) -> list[str]:
    """Returns the texts of an error and of its causes, including causes in the JVM; the outermost first."""
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        thrown: Any = getattr(cause, "java_exception", None) or getattr(cause, "_origin", None)
        if thrown is None:
            found.append(str(cause))
        try:
            while thrown is not None:
                found.append(str(thrown.toString()))
                thrown = thrown.getCause()
        except Exception:  # the JVM has ended
            found.append(known_of(cause))
        cause = cause.__cause__
    return found
