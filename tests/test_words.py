"""The check of words finds what it is for: it is shown red here."""

from __future__ import annotations

import pytest

from harness.words import faults_of_python


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"""What was computed."""\n', "a docstring begins with 'What': begin with a verb or a noun"),
        ('"""Computes a change anew."""\n', "'anew': write again, or a verb with re-"),
        ("x = 1  # beside the others\n", "'beside': write concurrently with, next to"),
        ('raise ValueError("the row was set apart")\n', "'set apart': write quarantined"),
        ("def what_is_told(): ...\n", "what_is_told: 'told' is a retired word"),
    ],
)
def test_a_retired_word_and_a_riddle_are_faults(text: str, fault: str) -> None:
    """In a docstring, a comment, a message and a name."""
    assert [found for _, found in faults_of_python(text)] == [fault]


@pytest.mark.parametrize("text", ['"""Returns `anew` of {told}."""\n', 'key = "anew"\n', '"""A commit of Delta."""\n'])
def test_code_and_keys_are_no_words(text: str) -> None:
    """A name within a text is not prose."""
    assert list(faults_of_python(text)) == []
