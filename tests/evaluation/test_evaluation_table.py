"""Tables that can be read in a terminal and pasted into Markdown."""

from __future__ import annotations

import csv
import io
import math

import pytest

from dragoman.evaluation import MeanStd, MetricScore, format_csv, format_latex, format_table

ROWS = [
    {"system": "bahdanau", "BLEU": MetricScore("BLEU", 38.1, "higher"), "parameters": 1_234_567},
    {"system": "transformer", "BLEU": MetricScore("BLEU", 4, "higher"), "perplexity": 5.678},
]


def test_a_table_for_a_terminal() -> None:
    assert format_table(ROWS).splitlines() == [
        "system        BLEU  parameters  perplexity",
        "-----------  -----  ----------  ----------",
        "bahdanau     38.10   1,234,567           -",
        "transformer   4.00           -        5.68",
    ]


def test_a_table_for_markdown() -> None:
    assert format_table([{"a|b": "x\ny", "n": 1}, {"a|b": "p|q", "n": 20}], markdown=True).splitlines() == [
        r"| a\|b |   n |",
        "| ---- | --: |",
        "| x y  |   1 |",
        r"| p\|q |  20 |",
    ]


def test_wide_characters_keep_columns_straight() -> None:
    lines = format_table([{"word": "猫", "n": 1}, {"word": "chat", "n": 2}]).splitlines()
    assert lines[2:] == ["猫    1", "chat  2"]  # the character is two columns wide


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([35.2, 0.04], ["35.20", "0.04"]),
        ([0.000999, 1.0], ["0.0010", "1.0000"]),
        ([0.000999], ["0.0010"]),
        ([3.3e18, 2e17], ["3.30e+18", "2.00e+17"]),
        ([3e-4, 1e-5], ["3.00e-04", "1.00e-05"]),
        ([math.inf, 4.0], ["inf", "4.00"]),
        ([True, None], ["yes", "-"]),
        ([0.0, 0.0], ["0.00", "0.00"]),
    ],
)
def test_largest_number_determines_the_format_of_a_column(values: list[object], shown: list[str]) -> None:
    assert [line.strip() for line in format_table([{"value": value} for value in values]).splitlines()[2:]] == shown


def test_all_rows_of_a_markdown_table_are_equally_long() -> None:
    assert len({len(line) for line in format_table(ROWS, markdown=True).splitlines()}) == 1


def test_no_rows_are_no_table() -> None:
    assert format_table([]) == format_table([{}]) == ""


def test_mean_and_sample_standard_deviation() -> None:
    assert MeanStd.of([2.0, 4.0, 6.0]) == MeanStd(4, 2)
    assert MeanStd.of([38.1]).formatted == "38.10"
    assert format_table([{"BLEU": MeanStd(4, 2)}, {"BLEU": MeanStd(38.104, 0.256)}]).splitlines()[2:] == [
        " 4.00 ± 2.00",
        "38.10 ± 0.26",
    ]


def test_csv_has_all_digits_and_deviations_in_columns_of_their_own() -> None:
    rows = [{"system": 'a, "b"', "BLEU": MeanStd(1 / 3, 0.5), "n": 1000}, {"system": "c", "BLEU": MeanStd(2, 0.0)}]
    assert list(csv.reader(io.StringIO(format_csv(rows)))) == [
        ["system", "BLEU", "BLEU, std", "n"],
        ['a, "b"', "0.3333333333333333", "0.5", "1000"],
        ["c", "2", "0.0", ""],
    ]
    assert format_csv([{"BLEU": MeanStd(2.0)}]) == "BLEU\n2.0\n"


def test_latex_is_escaped_and_aligned() -> None:
    rows = [{"system": "a_b & c", "exact %": MeanStd(4, 2), "FLOPs": 6.64e10}]
    assert format_latex(rows).splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"system & exact \% & FLOPs \\",
        r"\midrule",
        r"a\_b \& c & 4.00 $\pm$ 2.00 & $6.64 \times 10^{10}$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
