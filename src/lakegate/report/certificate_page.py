"""A certificate of erasure as one HTML page, readable without a script and without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from lakegate.erasure.certificate import Certificate
from lakegate.report import parts, words
from lakegate.report.parts import ReportTable

LISTED_MAX = 1000
"""More files than these are in the JSON file alone."""
MEANINGS = {
    "clean": "Nothing of these persons was found, and everything was looked at.",
    "found": "Values of these persons were found.",
    "incomplete": "Nothing was found, but not everything could be looked at.",
}


def render(certificate: Certificate) -> str:
    """Returns the text of the page."""
    style = (files("lakegate.report") / "page.css").read_text(encoding="utf-8")
    made = f"{words.day(certificate.made_at_ms)} at {words.minute(certificate.made_at_ms)} UTC"
    body = "\n".join(
        parts.section(anchor, heading, parts.scrolling(parts.grid(table), heading))
        for anchor, heading, table in (
            ("facts", "Facts", _facts(certificate)),
            ("found", _heading("Found", certificate.found), _found(certificate)),
            ("not-looked-at", "Not looked at", _not_looked_at(certificate)),
            ("looked-at", _heading("Looked at", certificate.looked_at), _looked_at(certificate)),
        )
        if table.rows
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Lakegate">
<title>{escape(certificate.table)}: certificate {certificate.number}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<p class="made">Lakegate certificate of erasure, number {certificate.number}, made {made}</p>
<h1>{escape(certificate.table)}</h1>
<p class="headline">{escape(certificate.verdict)}</p>
<p class="summary">{escape(MEANINGS[certificate.verdict])}</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _heading(text: str, rows: Sequence[object]) -> str:
    return text if len(rows) <= LISTED_MAX else f"{text}: the first {LISTED_MAX:,} of {len(rows):,}"


def _facts(certificate: Certificate) -> ReportTable:
    earliest = certificate.earliest_version
    columns = "; ".join(f"{name} (in files: {', '.join(names)})" for name, names in certificate.columns.items())
    rows = [
        ("Version", str(certificate.version)),
        ("Earliest version that can be read", words.NOTHING if earliest is None else str(earliest)),
        ("Columns", columns + ("; texts of all other columns" if certificate.is_anywhere else "")),
        ("Old files are kept for", words.span(certificate.deleted_files_kept_ms)),
        ("The log is kept for", words.span(certificate.log_kept_ms)),
        ("Lakegate", certificate.lakegate),
        ("SHA-256", certificate.sha256),
        ("SHA-256 of the previous certificate", certificate.previous or words.NOTHING),
        ("Salt", certificate.salt),
        *(("Person, salted hash", one) for one in certificate.persons),
    ]
    return ReportTable(id="facts-table", caption="Facts", headings=("What", "Value"), rows=rows)


def _found(certificate: Certificate) -> ReportTable:
    rows = [
        (one.place, one.where, one.column, str(one.rows), words.clock(one.gone_at_ms, has_day=True), one.by, one.path)
        for one in certificate.found[:LISTED_MAX]
    ]
    headings = ("Place", "Where", "Column", "Rows", "May be gone from", "By", "Path")
    return ReportTable(id="found-table", caption="Found", headings=headings, rows=rows, numeric=(3,))


def _not_looked_at(certificate: Certificate) -> ReportTable:
    rows = [(one.path, one.reason) for one in certificate.not_looked_at]
    return ReportTable(id="not-looked-at-table", caption="Not looked at", headings=("Path", "Reason"), rows=rows)


def _looked_at(certificate: Certificate) -> ReportTable:
    rows = [
        (
            one.place,
            words.count(one.size_bytes),
            ", ".join(one.columns),
            f"{one.row_groups_read} of {one.row_groups}" if one.row_groups else "",
            one.sha256,
            one.path,
        )
        for one in certificate.looked_at[:LISTED_MAX]
    ]
    headings = ("Place", "Bytes", "Columns", "Row groups read", "SHA-256", "Path")
    return ReportTable(id="looked-at-table", caption="Looked at", headings=headings, rows=rows, numeric=(1,))
