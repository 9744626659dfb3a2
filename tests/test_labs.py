"""The labs in docs/labs: valid notebooks whose cells and solutions run.

The default run executes what is cheap: cells and solutions without the tag `slow`, which marks those that train or
measure, or need the result of one that does. The slow test executes everything as a student would.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman

LABS = sorted((Path(__file__).parent.parent / "docs" / "labs").glob("*.ipynb"))
SOLUTION = re.compile(r"<details>\n<summary>Solution.*?```python\n(.*?)```\n\n</details>", re.DOTALL)

each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.stem)


def read(lab: Path) -> dict[str, Any]:
    return json.loads(lab.read_text(encoding="utf-8"))


def programs(lab: Path, slow: bool) -> Iterator[str]:
    """The code of all cells and solutions in their order; without `slow`, only of those that are cheap."""
    for cell in read(lab)["cells"]:
        source = "".join(cell["source"])
        if slow or "slow" not in cell["metadata"].get("tags", ()):
            yield from [source] if cell["cell_type"] == "code" else SOLUTION.findall(source)


def execute(lab: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, slow: bool) -> tuple[dict[str, Any], int]:
    """Run a notebook in one namespace, and return it with the number of figures that Jupyter would display."""
    monkeypatch.chdir(folder)
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    figures = 0
    for program in programs(lab, slow):
        tree = ast.parse(program)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, lab.name, "exec"), vars(notebook))
        if last is not None:
            value = eval(compile(ast.Expression(last.value), lab.name, "eval"), vars(notebook))
            figures += hasattr(value, "_repr_svg_") and "<svg" in value._repr_svg_()
    return vars(notebook), figures


def test_there_is_a_lab_for_each_lecture() -> None:
    assert [lab.name[:2] for lab in LABS] == ["1_", "2_", "3_", "4_", "5_"]


@each_lab
def test_lab_is_a_valid_notebook_without_outputs(lab: Path) -> None:
    notebook = read(lab)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), f"{lab.name} has outputs: clear them"
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert text.count("### Exercise ") == len(SOLUTION.findall(text)) == 3
    assert "$$" in text
    assert "Where the lecture" in text


@each_lab
def test_names_of_the_package_in_a_lab_exist(lab: Path) -> None:
    nodes = [node for program in programs(lab, slow=True) for node in ast.walk(ast.parse(program))]
    imports: list[ast.stmt] = [node for node in nodes if isinstance(node, ast.ImportFrom | ast.Import)]
    exec(compile(ast.Module(imports, []), lab.name, "exec"), {})
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dragoman"}
    assert [name for name in used if not hasattr(dragoman, name)] == []


@each_lab
def test_cheap_cells_of_a_lab_run(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their asserts hold: the worked examples of the lectures."""
    execute(lab, tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@each_lab
def test_whole_lab_runs(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything with the number of steps in the notebook; trainings lead to what the text says."""
    names, figures = execute(lab, tmp_path, monkeypatch, slow=True)
    assert figures >= 2
    CLAIMS[lab.stem[0]](names)


def positions_are_needed(names: dict[str, Any]) -> None:
    assert names["losses"][-1][1] < 0.1 < 1 < names["losses_without"][-1][1]


def wider_searches_score_higher(names: dict[str, Any]) -> None:
    greedy, beam, exact = (sum(names["raw_scores"][name]) for name in ("greedy", "beam 4", "exact search"))
    assert greedy <= beam <= exact


def attention_beats_one_vector(names: dict[str, Any]) -> None:
    perplexity = {row["system"]: row["perplexity"] for row in names["rows"]}
    assert perplexity["bahdanau"] < min(perplexity[name] for name in ("bow", "rnn-lm", "cho"))


def nothing_is_trained(names: dict[str, Any]) -> None:
    assert all(milliseconds > 0 for milliseconds in names["milliseconds"].values())


def one_vector_fails_on_long_sequences(names: dict[str, Any]) -> None:
    longest = {name: curve[-1][1] for name, curve in names["curves"].items()}
    assert longest["cho"] + 20 < min(longest["bahdanau"], longest["luong"])


CLAIMS = {
    "1": positions_are_needed,
    "2": wider_searches_score_higher,
    "3": attention_beats_one_vector,
    "4": nothing_is_trained,
    "5": one_vector_fails_on_long_sequences,
}
