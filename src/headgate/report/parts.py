"""The building blocks of the page: sections, figures, tables and legends as HTML, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from headgate.report.charts import Chart

ACTS = (("earlier", "← Earlier"), ("later", "Later →"), ("in", "Zoom in"), ("out", "Zoom out"), ("all", "Show all"))
"""What the buttons under a chart do, by the names that `page.js` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts. `title` makes the heading of a row's tooltip from its cells: `Version {0}`."""

    id: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = "{0}"
    numeric: frozenset[int] = frozenset()


def legend(entries: Iterable[str]) -> str:
    """A list of entries that are HTML already."""
    return f'<ul class="legend">{"".join(f"<li>{entry}</li>" for entry in entries)}</ul>'


def chip(colour: str) -> str:
    """A small square in a colour of the style sheet."""
    return f'<i class="chip" style="background:{colour}"></i>'


def section(anchor: str, heading: str, body: str) -> str:
    """A section with its heading; both texts are HTML already."""
    title = f'<h2 id="{anchor}-heading">{heading}</h2>'
    return f'<section id="{anchor}" aria-labelledby="{anchor}-heading">\n{title}\n{body}\n</section>'


def figure(chart: Chart) -> str:
    """The place of a chart, and the buttons to move in it."""
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


def folded(table: Table) -> str:
    """The table behind its caption; a click or Enter opens it."""
    return f"<details><summary>{escape(table.caption)}</summary>{scrolling(grid(table), table.caption)}</details>"


def scrolling(table: str, label: str) -> str:
    """A table, HTML already, in a frame that the keyboard can scroll."""
    return f'<div class="scrolling" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def grid(table: Table) -> str:
    """The table itself; `page.js` reads tooltips from its rows."""
    kinds = [' class="number"' if place in table.numeric else "" for place in range(len(table.headings))]
    headings = zip(table.headings, kinds, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in headings)
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<table id="{table.id}" data-title="{escape(table.title)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
