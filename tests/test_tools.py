"""The tools that look at the code base run on its present state."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    return import_module(name)


def test_sample_for_readers_finds_functions_settings_and_messages() -> None:
    sample = tool("sample_for_readers")
    functions, settings, messages = (list(find()) for find in (sample.functions, sample.settings, sample.messages))
    assert len(functions) > 1000
    assert {"training.steps", "system.settings.model_dim"} <= {item.origin for item in settings}
    assert any(item.text.startswith("Error message") for item in messages)
    assert any(item.text.startswith("Help text") for item in messages)
    assert not any("src/dragoman" in item.text for item in settings)


def test_code_metrics_find_no_repeated_class_names() -> None:
    metrics = tool("code_metrics")
    trees = metrics.parse_modules()
    assert len(trees) > 100
    assert not metrics.repeated(metrics.classes(trees))
