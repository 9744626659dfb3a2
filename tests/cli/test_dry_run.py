"""`train --dry-run`: the checks and choices of a training, without a run."""

from __future__ import annotations

import json
from pathlib import Path

from calling import Dragoman


def test_dry_run_prints_choices_and_leaves_nothing(dragoman: Dragoman, tmp_path: Path) -> None:
    corpus = tmp_path / "words.tsv"
    corpus.write_text("".join(f"w{number:x}\t{' '.join(f'{number:x}')}\n" for number in range(1000, 1200)))
    answer = dragoman("train", tmp_path / "run", "--source", corpus, "--dry-run", "--json", "--device", "cpu")
    assert answer.code == 0
    result = json.loads(answer.out)
    choices = {choice["setting"]: choice for choice in result["preflight"]["choices"]}
    assert choices["text.source_tokenizer"]["value"] == result["settings"]["text"]["source_tokenizer"] == "character"
    assert choices["text.target_tokenizer"]["reason"] == "a closed inventory of 16 symbols between spaces"
    assert "text.target_tokenizer=symbol  (a closed inventory" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["words.tsv"]
    assert dragoman("train", tmp_path / "run", "--resume", "--dry-run").code == 2
