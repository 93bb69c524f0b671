"""The building blocks of the page: sections, figures, tables and legends as HTML, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from lakegate.report.charts import Chart, Json

ACTS = (("earlier", "← Earlier"), ("later", "Later →"), ("in", "Zoom in"), ("out", "Zoom out"), ("all", "Show all"))
"""The actions of the buttons under a chart, by the names in `page.js`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table of texts. `title` is the pattern for the heading of a row's tooltip: `Version {0}`."""

    id: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = "{0}"
    numeric: Sequence[int] = ()
    """Indexes of the columns that are aligned to the right."""
    anchors: Sequence[str] = ()
    """The anchor of each row, by which links lead to it."""
    links: Sequence[str | None] = ()
    """The anchor to which each row and its item in a chart lead."""
    link_column: int = 0
    """Index of the column with the link."""

    def as_json(self) -> dict[str, Json]:
        """The data for tooltips, and for filling the table when it is opened."""
        return {
            "id": self.id,
            "headings": self.headings,
            "rows": self.rows,
            "title": self.title,
            "numeric": self.numeric,
            "anchors": self.anchors,
            "links": self.links,
            "linkColumn": self.link_column,
        }


def legend(entries: Iterable[str]) -> str:
    """Returns a list of entries that are HTML already."""
    return f'<ul class="legend">{"".join(f"<li>{entry}</li>" for entry in entries)}</ul>'


def chip(colour: str) -> str:
    """Returns a small square in a colour of the style sheet."""
    return f'<i class="chip" style="background:{colour}"></i>'


def section(anchor: str, heading: str, body: str) -> str:
    """Returns a section with its heading; both texts are HTML already."""
    title = f'<h2 id="{anchor}-heading">{heading}</h2>'
    return f'<section id="{anchor}" aria-labelledby="{anchor}-heading">\n{title}\n{body}\n</section>'


def figure(chart: Chart) -> str:
    """Returns the frame of a chart, and the buttons to move in it."""
    tools = ""
    if chart.is_zoomable:
        tools = (
            f'<div class="tools" role="group" aria-label="Move and zoom" data-chart="{chart.id}">'
            + "".join(f'<button type="button" data-do="{act}">{name}</button>' for act, name in ACTS)
            + '<span class="hint">Drag to move, Ctrl + wheel to zoom, arrow keys from item to item</span></div>'
        )
    about = f'tabindex="0" role="group" aria-roledescription="chart" aria-label="{escape(chart.label)}"'
    drawing = f'<div class="chart" id="{chart.id}" style="height:{chart.height_px}px" {about}></div>'
    return f"<figure>{drawing}{tools}</figure>"


def folded(table: ReportTable) -> str:
    """Returns the frame of a long table behind its caption; `page.js` fills it when it is opened."""
    caption = escape(table.caption)
    pages = (
        '<div class="tools pages" hidden><button type="button" data-page="-1">← Rows before</button>'
        '<button type="button" data-page="1">Rows after →</button><span class="hint" aria-live="polite"></span></div>'
    )
    frame = scrolling("", table.caption)
    return f'<details data-table="{table.id}"><summary>{caption}</summary>{frame}{pages}</details>'


def scrolling(table: str, label: str) -> str:
    """Returns a table, HTML already, in a frame that the keyboard can scroll."""
    return f'<div class="scrolling" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def grid(table: ReportTable) -> str:
    """Returns a short table, readable without a script."""
    kinds = [' class="number"' if place in table.numeric else "" for place in range(len(table.headings))]
    headings = zip(table.headings, kinds, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in headings)
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<table id="{table.id}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
