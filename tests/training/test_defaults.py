"""What is said of the choices is what is used."""

from __future__ import annotations

from pathlib import Path

from dragoman.config import from_dict
from dragoman.run import read_tokenizers
from dragoman.training.prepare import prepare_run


def test_reports_the_learned_vocabulary_size(tmp_path: Path) -> None:
    """Eight different words have fewer pieces than the 500 that are allowed at least."""
    for name in ("source", "target"):
        (tmp_path / name).write_text("one two three four\nfive six seven eight\n" * 30, encoding="utf-8")
    values = {
        "data": {"source": [str(tmp_path / "source")], "target": [str(tmp_path / "target")], "validation_size": 1},
        "system": {"name": "bahdanau", "size": "tiny", "settings": {"model_dim": 16}},
        "training": {"device": "cpu"},
    }
    prepared = prepare_run(tmp_path / "run", from_dict(values), lambda text: None)
    (choice,) = (choice for choice in prepared.choices if choice.setting == "text.vocab_size")
    size = read_tokenizers(tmp_path / "run")[0].vocab_size
    assert size < 500
    assert str(choice).startswith(f"text.vocab_size={size}  (all different tokens of the text; ")
    assert "the limit is 500, " in choice.reason
