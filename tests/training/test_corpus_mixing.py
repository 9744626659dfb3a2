"""Several corpora: mixed by weights or temperature, told apart by tags, prepared alike by any number of workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest_training import small_config
from test_resume import train

from dragoman.config import Config, from_yaml, override_settings, to_yaml
from dragoman.data import Batches, DataFormat, TokenStore, phrasebook
from dragoman.data import token_store as shards
from dragoman.errors import UserError
from dragoman.run import load, read_framing, read_tokenizers
from dragoman.text import BPEDropout, Tokenizer, learn_tokenizer
from dragoman.training.prepare import prepare_run

SHORT = (
    "training.steps=2",
    "training.validation_interval=2",
    "training.validation_sentences=2",
    "training.average_checkpoints=false",
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 300 pairs and one of 100, as files."""
    folder = tmp_path_factory.mktemp("two")
    for name, seed, pairs in (("news", 1, 300), ("web", 2, 100)):
        phrasebook.write(folder / name, pairs=pairs, valid=10, test=10, seed=seed)
    return folder


def config_of(two: Path, *settings: str, valid: bool = True) -> Config:
    files = {
        "source": [str(two / name / "train.en") for name in ("news", "web")],
        "target": [str(two / name / "train.de") for name in ("news", "web")],
        "valid_source": [str(two / "news" / "valid.en")] if valid else [],
        "valid_target": [str(two / "news" / "valid.de")] if valid else [],
    }
    given = [f"data.{name}={json.dumps(value)}" for name, value in files.items()]
    return override_settings(small_config(two / "news"), [*given, "data.max_length=150", *settings])


def prepared(folder: Path, config: Config) -> TokenStore:
    prepare_run(folder, config, lambda text: None)
    return TokenStore(folder / "data" / "train")


def sentences(two: Path, name: str) -> list[str]:
    return (two / name / "train.en").read_text(encoding="utf-8").splitlines()


def drawn(store: TokenStore, epoch: int) -> np.ndarray:
    batches = Batches(store, max_tokens=400, seed=3, window=50)
    return np.concatenate(
        [indices for window in range(batches.windows) for indices in batches.plan_window(epoch, window)]
    )


def test_default_epoch_has_all_pairs_once(two: Path, tmp_path: Path) -> None:
    store = prepared(tmp_path / "run", config_of(two))
    assert [(part.pairs, part.draws, Path(part.name).parent.name) for part in store.corpora] == [
        (300, 300, "news"),
        (100, 100, "web"),
    ]
    assert sorted(drawn(store, 0).tolist()) == list(range(400))


@pytest.mark.parametrize(
    ("setting", "draws"),
    [
        ("data.sampling_weights=[1, 3]", [100, 300]),
        ("data.sampling_weights=[1, 0]", [400, 0]),
        ("data.sampling_temperature=1", [300, 100]),
        ("data.sampling_temperature=2", [254, 146]),  # √300 : √100, so 400 · 17.3205 / 27.3205 = 253.59
    ],
)
def test_epoch_follows_weights_and_temperature(two: Path, tmp_path: Path, setting: str, draws: list[int]) -> None:
    store = prepared(tmp_path / "run", config_of(two, setting))
    seen = np.zeros(400, int)
    for epoch in range(4):
        pairs = drawn(store, epoch)
        assert [(pairs < 300).sum(), (pairs >= 300).sum()] == draws
        np.add.at(seen, pairs, 1)
    for own, count in zip((seen[:300], seen[300:]), draws):
        assert own.max() - own.min() <= 1
        assert own.sum() == 4 * count


def test_mixed_run_resumes_within_an_epoch(two: Path, tmp_path: Path) -> None:
    batches = Batches(
        prepared(tmp_path / "run", config_of(two, "data.sampling_weights=[1, 3]")), max_tokens=300, seed=3, window=90
    )
    walk = batches.iterate_indices()
    whole = [next(walk) for _ in range(90)]
    assert whole[-1][1] >= 1  # in another epoch
    for number in (0, 13, 88):
        resumed = batches.iterate_indices(whole[number][2])
        for indices, epoch, after in whole[number + 1 :]:
            again = next(resumed)
            assert (again[0].tolist(), again[1:]) == (indices.tolist(), (epoch, after))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["data.sampling_weights=[1]"],
            "data.sampling_weights has 1 values for 2 training corpora: give one value per corpus",
        ),
        (["data.corpus_tags=[a, b, c]"], "data.corpus_tags has 3 values for 2 training corpora"),
        (["data.sampling_weights=[1, -1]"], "must be at least 0, and one of them above 0"),
        (["data.sampling_weights=[0, 0]"], "must be at least 0, and one of them above 0"),
        (["data.sampling_weights=[1, nan]"], "must be at least 0"),
        (["data.sampling_weights=[1, many]"], "data.sampling_weights must be a number, got 'many'"),
        (["data.sampling_weights=[1, 3]", "data.sampling_temperature=5"], "exclude each other"),
        (["data.sampling_temperature=0"], "data.sampling_temperature must be between"),
        (["data.corpus_tags=[news, web]"], "set data.valid_corpus_tags to one of these tags per corpus"),
        (["data.corpus_tags=[news, web]", "data.valid_corpus_tags=[new]"], "did you mean 'news'"),
        (["data.valid_corpus_tags=[news]"], "needs tags of the training corpora, too: set data.corpus_tags"),
        (["data.corpus_tags=[two words, web]", "data.valid_corpus_tags=[web]"], "may contain only letters, digits"),
        (["data.num_workers=0"], "data.num_workers must be between"),
    ],
)
def test_contradicting_settings_are_errors(two: Path, tmp_path: Path, settings: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        prepare_run(tmp_path / "run", config_of(two, *settings), lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_tags_need_translation(two: Path, tmp_path: Path) -> None:
    config = override_settings(small_config(two / "news", "gpt"), ["data.target=[]", "data.valid_target=[]"])
    config = override_settings(config, ["data.corpus_tags=[a]", "objective.name=causal-lm"])
    with pytest.raises(UserError, match="needs pairs to translate, but the data is read as lines"):
        prepare_run(tmp_path / "run", config, lambda text: None)


def test_settings_are_saved_in_the_run(two: Path, tmp_path: Path) -> None:
    config = config_of(
        two, "data.sampling_weights=[1, 0.5]", "data.corpus_tags=[news, '']", "data.valid_corpus_tags=['']"
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert from_yaml(tmp_path / "config.yaml") == config
    assert config.data.sampling_weights == (1.0, 0.5)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("valid", [True, False])
def test_result_does_not_depend_on_the_number_of_workers(two: Path, tmp_path: Path, monkeypatch, valid: bool) -> None:
    monkeypatch.setattr(shards, "MAX_SHARD_PAIRS", 64)
    monkeypatch.setattr(DataFormat, "max_chunk_pairs", 30)
    made: list[dict[str, bytes]] = []
    for workers in (1, 2):
        config = config_of(
            two, f"data.num_workers={workers}", "data.max_length=40", "data.corpus_tags=[a, b]", valid=False
        )
        if valid:
            config = config_of(
                two, f"data.num_workers={workers}", "data.corpus_tags=[a, b]", "data.valid_corpus_tags=[b]"
            )
        prepare_run(tmp_path / "run", config, lambda text: None)
        made.append(contents(tmp_path / "run"))
        (tmp_path / "run").rename(tmp_path / f"run-{workers}")
    settings = [one.pop("config.yaml").decode() for one in made]
    assert made[0] == made[1]
    assert settings[0].replace("workers: 1", "workers: 2") == settings[1]
    assert any(name.startswith("data/train/000004/") for name in made[0])


def test_sharded_store_equals_a_single_folder(two: Path, tmp_path: Path, monkeypatch) -> None:
    whole = prepared(tmp_path / "whole", config_of(two, valid=False))
    monkeypatch.setattr(shards, "MAX_SHARD_PAIRS", 32)
    cut = prepared(tmp_path / "cut", config_of(two, valid=False))
    assert len(whole.columns[0].folders) == 2
    assert len(cut.columns[0].folders) > 10
    assert (cut.columns[0].rows(np.arange(len(cut))) == whole.columns[0].rows(np.arange(len(whole)))).all()
    assert drawn(cut, 1).tolist() == drawn(whole, 1).tolist()
    reports = [json.loads((tmp_path / name / "preflight.json").read_text()) for name in ("whole", "cut")]
    assert reports[0] == reports[1]


@pytest.fixture(scope="module")
def tagged(two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagged") / "run"
    prepare_run(folder, config_of(two, "data.corpus_tags=[news, web]", *SHORT, valid=False), lambda text: None)
    train(folder)
    return folder


def test_tag_precedes_every_source_of_its_corpus(two: Path, tagged: Path) -> None:
    store, (tokenizer, _) = TokenStore(tagged / "data" / "train"), read_tokenizers(tagged)
    numbers = tokenizer.tags
    assert sorted(numbers) == ["news", "web"]
    assert [part.tag for part in store.corpora] == ["news", "web"]
    news = store.corpora[0].pairs
    first = [int(store.source(i)[0]) for i in range(len(store))]
    assert first == [numbers["news"]] * news + [numbers["web"]] * (len(store) - news)
    assert tokenizer.decode(store.source(news).tolist()) in sentences(two, "web")
    assert store.target(news).max() < min(numbers.values())
    valid = TokenStore(tagged / "data" / "valid")
    for i in range(len(valid)):
        name = "news" if valid.source(i)[0] == numbers["news"] else "web"
        assert tokenizer.decode(valid.source(i).tolist()) in sentences(two, name)
    report = json.loads((tagged / "preflight.json").read_text())
    assert report["samples"][0]["source_tokens"][0] == "<tag:news>"


def test_tag_is_never_generated(tagged: Path) -> None:
    assert set(read_tokenizers(tagged)[1].tags.values()) <= set(read_framing(tagged).suppressed)


def test_translate_with_the_tag_of_a_corpus(tagged: Path) -> None:
    run = load(tagged, device="cpu")
    news, web = (run.source_tokenizer.tags[name] for name in ("news", "web"))
    text = "the old dog sleeps"
    plain = run.source_tokenizer.encode(text)
    encoded: Callable[[Any], list[Any]] = lambda tag: run.encode_sources([text, text], tag)  # noqa: E731
    assert encoded("web") == [[web, *plain, run.framing.eos]] * 2
    assert encoded(None) == [[news, *plain, run.framing.eos]] * 2  # as the first corpus, unless told
    assert encoded(["", "web"]) == [[*plain, run.framing.eos], [web, *plain, run.framing.eos]]
    scores = {tag: run.translate([text], tag=tag)[0].score for tag in ("news", "web")}
    assert scores["news"] != scores["web"]
    assert run.translate([text])[0].score == scores["news"]
    assert [t.score for t in run.translate([text, text], tag=["web", "news"])] == pytest.approx(
        [scores["web"], scores["news"]], rel=1e-5
    )
    with pytest.raises(UserError, match="unknown corpus tag 'wep': did you mean 'web'"):
        run.translate([text], tag="wep")


def test_run_without_tags_rejects_a_tag(two: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "run", config_of(two, *SHORT), lambda text: None)
    train(tmp_path / "run")
    with pytest.raises(UserError, match="was trained without corpus tags"):
        load(tmp_path / "run", device="cpu").translate(["a"], tag="web")


def test_tags_of_the_parent_run_are_kept(two: Path, tagged: Path, tmp_path: Path) -> None:
    def config(tags: str) -> Config:
        given = [f"training.start_from={tagged}", f"data.corpus_tags={tags}", "text.vocab_size=null", "system.name="]
        return config_of(two, "system.settings={}", "system.size=", *given, valid=False)

    with pytest.raises(UserError, match=r"has 'film', but the model of .* knows the tags news, web: use only these"):
        prepare_run(tmp_path / "run", config("[news, film]"), lambda text: None)
    store = prepared(tmp_path / "run", config("['', web]"))
    assert int(store.source(len(store) - 1)[0]) == read_tokenizers(tagged)[0].tags["web"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "byte"])
def test_tags_are_special_tokens(kind: str, tmp_path: Path) -> None:
    tokenizer = learn_tokenizer(["the old dog <tag:web> sleeps", "web"], kind, 400)
    tagged = tokenizer.with_tags(["web", "news"])
    assert tagged.vocab_size == tokenizer.vocab_size + 2
    assert sorted(tagged.tags.values()) == [tokenizer.vocab_size, tokenizer.vocab_size + 1]
    text = "<tag:web> the old dog"
    assert tagged.encode(text) == tokenizer.encode(text)
    ids = [tagged.tags["web"], *tagged.encode("the old dog")]
    assert tagged.decode(ids) == "the old dog"
    assert tagged.tokens(ids)[0] == "<tag:web>"
    assert tagged.word_ids(ids)[0] == -1
    tagged.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (again.tags, again.vocab_size, again.decode(ids)) == (tagged.tags, tagged.vocab_size, "the old dog")
    assert again.with_tags(["web"]).vocab_size == tagged.vocab_size


def test_bpe_dropout_keeps_tags() -> None:
    tokenizer = learn_tokenizer(["low lower lowest newest widest"] * 9, "bpe", 300).with_tags(["web"])
    ids = [tokenizer.tags["web"], *tokenizer.encode("lowest newest")]
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**63, 20).astype(np.uint64)
    lengths = np.array([len(ids)])
    found = [BPEDropout(tokenizer, 0.5)(np.array(ids), lengths, keys[n : n + 1])[0].tolist() for n in range(20)]
    assert {one[0] for one in found} == {ids[0]}
    assert {tokenizer.decode(one) for one in found} == {"lowest newest"}
    assert len({tuple(one) for one in found}) > 1
