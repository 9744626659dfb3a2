"""Fine-tuning of multilingual models: every corpus has the language codes of its pair."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest_training import small_config
from test_resume import assert_equal, contents, train

import dragoman
from dragoman.config import Config, DataConfig, TextConfig
from dragoman.data import Batches, TokenStore
from dragoman.data.batch import IGNORE_INDEX
from dragoman.data.batching import RowFormat
from dragoman.data.data_formats import EncodedPair
from dragoman.data.token_store import encode_columns, write_shards
from dragoman.errors import UserError
from dragoman.run_files import read_metrics
from dragoman.text.framing import Framing
from dragoman.text.language_codes import LanguageCodes
from dragoman.training.prepare import prepare_run

CODES = {"en": 40, "de": 41, "nl": 42}  # tokens of the vocabulary, as good as any for a test


@pytest.fixture(scope="module")
def origin(origin_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with codes of three languages, which has learned nothing."""
    folder = tmp_path_factory.mktemp("origin") / "run"
    shutil.copytree(origin_run, folder, symlinks=True)
    document = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    framing = Framing(**{name: tuple(v) if isinstance(v, list) else v for name, v in document["framing"].items()})
    document["framing"] = replace(framing, languages=LanguageCodes(CODES)).to_dict()
    (folder / "model.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def tuned(corpus: Path, origin: Path, data: dict[str, Any], **training: Any) -> Config:
    settings = {"steps": 4, "validation_interval": 2, "start_from": str(origin)} | training
    config = small_config(corpus, **settings)
    return replace(config, data=replace(config.data, **data), text=TextConfig())


def test_special_tokens_of_each_corpus(tmp_path: Path) -> None:
    """The target code is read after BOS and is no label; the source code stands before the source."""
    chunks = [(n, encode_columns([EncodedPair(None, [7 + n], [8 + n, 9])], (50, 50))) for n in range(2)]  # type: ignore[arg-type]
    store = write_shards(tmp_path / "store", chunks, ["a", "b"], languages=[("en", "de"), ("en", "nl")])
    framing = Framing(pad=0, bos=2, eos=3, source_suffix=(3,), languages=LanguageCodes(CODES))
    rows = RowFormat(framing.for_languages("en", "de"), model_framing=framing)
    batch = Batches(TokenStore(store.folder), 20, seed=1, rows=rows).build_batch(np.array([0, 1]), 0)
    assert batch.source.tolist() == [[40, 7, 3], [40, 8, 3]]
    assert batch.target.tolist() == [[2, 41, 8, 9], [2, 42, 9, 9]]
    assert batch.labels.tolist() == [[IGNORE_INDEX, 8, 9, 3], [IGNORE_INDEX, 9, 9, 3]]
    assert batch.target_tokens == 6


def test_several_pairs(corpus: Path, origin: Path, tmp_path: Path) -> None:
    """Pairs are mixed by temperature; each is validated; the first one is the default; resuming is exact."""
    files = {
        "source": (str(corpus / "train.en"), str(corpus / "test.en")),
        "target": (str(corpus / "train.de"), str(corpus / "test.de")),
        "valid_source": (str(corpus / "valid.en"),) * 2,
        "valid_target": (str(corpus / "valid.de"),) * 2,
        "corpus_languages": ("English:de", "en:nl"),
        "sampling_temperature": 5.0,
    }
    config = tuned(corpus, origin, files)
    for name in ("whole", "resumed"):
        prepare_run(tmp_path / name, config, lambda text: None)
    train(tmp_path / "whole")
    train(tmp_path / "resumed", stop_after=3)
    train(tmp_path / "resumed")
    assert_equal(contents(tmp_path / "whole"), contents(tmp_path / "resumed"))
    store = TokenStore(tmp_path / "whole" / "data" / "train")
    large, small = store.corpora
    assert [(c.source_language, c.target_language) for c in store.corpora] == [("en", "de"), ("en", "nl")]
    assert small.draws / large.draws == pytest.approx((small.pairs / large.pairs) ** (1 / 5), rel=0.1)
    record = next(r for r in read_metrics(tmp_path / "whole") if r["kind"] == "valid")
    assert list(record["corpora"]) == ["en→de", "en→nl"]
    assert record["bleu"] == pytest.approx(sum(scores["bleu"] for scores in record["corpora"].values()) / 2)
    run = dragoman.load(tmp_path / "whole", device="cpu")
    assert (run.framing.source_prefix, run.framing.forced_bos) == ((40,), (41,))
    assert run.with_languages("en", "nl").framing.forced_bos == (42,)


@pytest.mark.slow
def test_one_pair_from_the_command_line(corpus: Path, origin: Path, tmp_path: Path) -> None:
    config = tuned(corpus, origin, {"source_language": "de", "target_language": "nl"}, steps=1)
    prepare_run(tmp_path / "run", config, lambda text: None)
    train(tmp_path / "run")
    run = dragoman.load(tmp_path / "run", device="cpu")
    assert (run.framing.source_prefix, run.framing.forced_bos) == ((41,), (42,))
    assert "corpora" not in read_metrics(tmp_path / "run")[-1]


def test_wrong_languages(corpus: Path, origin: Path, tmp_path: Path) -> None:
    for data, message in (
        ({}, r"give the source \(--from\) and target \(--to\) language"),
        ({"source_language": "en", "target_language": "fr"}, "does not know the language 'fr'"),
        ({"corpus_languages": ("en:de", "en:nl")}, "2 language pairs for 1 corpora"),
    ):
        with pytest.raises(UserError, match=message):
            prepare_run(tmp_path / "run", tuned(corpus, origin, data), lambda text: None)
    config = small_config(corpus)
    with pytest.raises(UserError, match=r"data\.corpus_languages needs a multilingual model"):
        prepare_run(
            tmp_path / "run",
            replace(config, data=replace(config.data, corpus_languages=("en:de",))),
            lambda text: None,
        )
    with pytest.raises(UserError, match=r"must be FROM:TO.*one is 'en-de'"):
        DataConfig(corpus_languages=("en-de",))
    assert not (tmp_path / "run").exists()
