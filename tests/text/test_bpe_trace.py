from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import main
from dragoman.text.bpe_merges import iterate_merges
from dragoman.text.bpe_trace import count_words, initial_symbols, learn_trace, segment, trace_merges

SENNRICH = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


def test_the_example_of_the_paper() -> None:
    """Sennrich et al. 2016, algorithm 1: the merges that its program prints."""
    steps = list(trace_merges(SENNRICH))
    expected = ["es", "est", "est</w>", "lo", "low", "ne", "new", "newest</w>", "low</w>", "wi"]
    assert ["".join(step.pair) for step in steps[:10]] == expected
    assert [step.count for step in steps[:10]] == [9, 9, 9, 7, 7, 6, 6, 6, 5, 3]
    assert steps[0].num_symbols == 5 * 4 + 2 * 6 + 6 * 6 + 3 * 6  # newest and widest are one symbol shorter
    assert steps[0].compression == pytest.approx(95 / 86)


def test_ties_are_reported() -> None:
    """In "low lower newest widest" six pairs occur twice; in alphabetical order e s comes first."""
    step = next(trace_merges({"low": 1, "lower": 1, "newest": 1, "widest": 1}, "alphabetical"))
    assert (step.pair, step.count) == (("e", "s"), 2)
    assert {" ".join(pair) for pair in step.tied} == {"l o", "o w", "w e", "s t", "t </w>"}
    assert step.words["newest"] == ("n", "e", "w", "es", "t", "</w>")


@given(st.dictionaries(st.text("abc", min_size=1, max_size=6), st.integers(1, 9), min_size=1, max_size=8))
def test_merges_are_those_that_tokenizers_learn(counts: dict[str, int]) -> None:
    learned = iterate_merges({initial_symbols(word): count for word, count in counts.items()})
    assert [(step.pair, step.count, step.num_symbols) for step in trace_merges(counts)] == list(learned)


def test_every_word_becomes_one_symbol() -> None:
    *_, last = trace_merges(SENNRICH)
    assert last.words == {word: (f"{word}</w>",) for word in SENNRICH}
    assert segment("lowest", [step.pair for step in trace_merges(SENNRICH)])[-1] == ("low", "est</w>")


def test_learning_stops_at_the_first_limit() -> None:
    """The text has 95 symbols of 11 kinds; three merges of newest and widest save 9 each: 95/86, 95/77, 95/68."""
    ratio = learn_trace(SENNRICH, 10, vocab_size=14, compression_ratio=1.2)
    assert (len(ratio.steps), ratio.stopped) == (2, "the compression ratio 1.2 is reached")
    assert ratio.final_counts[:2] == ((("est", "</w>"), 9), (("l", "o"), 7))
    size = learn_trace(SENNRICH, 10, vocab_size=12, compression_ratio=1.2)
    assert (len(size.steps), size.stopped) == (1, "the vocabulary has 12 symbols")
    assert learn_trace(SENNRICH, 0).stopped == "0 merges are learned"
    assert learn_trace({"ab": 1}, 10).stopped == "every word is one symbol"
    assert learn_trace({"ab": 1}, 10).final_counts == ()


def test_the_text_of_the_lecture() -> None:
    """Each word once: six pairs occur twice, and the first in the text is l o; e s is the first in the alphabet."""
    words = count_words("low lower newest widest")
    trace = learn_trace(words, 100)
    assert set(trace.vocabulary) == {*"lowernstid", "</w>"}
    assert (trace.steps[0].pair, len(trace.steps[0].tied)) == (("l", "o"), 5)
    assert learn_trace(words, 100, tie_break="alphabetical").steps[0].pair == ("e", "s")


def test_command_stops_at_a_compression(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["bpe", "--counts", "low=5 lower=2 newest=6 widest=3", "--compression-ratio", "1.3", "--json"]
    monkeypatch.setattr("sys.argv", ["dragoman", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code in (0, None)
    merges = json.loads(capsys.readouterr().out)["merges"]
    assert merges[-2]["compression"] < 1.3 <= merges[-1]["compression"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bpe"], "give exactly one text to learn BPE merges from"),
        (["bpe", "a b", "--counts", "a=1"], "give exactly one text to learn BPE merges from"),
        (["bpe", "--counts", "a=x"], "expected words with counts"),
        (["bpe", "--counts", "a=99999999999"], "counts up to 1,000,000,000"),
        (["bpe", "--counts", "a=0"], "at least one with a count above 0"),
        (["bpe", "  "], "the text is empty"),
    ],
)
def test_bad_input_is_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["dragoman", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
