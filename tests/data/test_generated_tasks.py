"""Generated tasks: examples are right, unambiguous and reproducible, and the splits do not overlap."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dragoman.data import task_grammars as grammars
from dragoman.data.generated_tasks import GENERATORS, generate_splits, write_generated
from dragoman.errors import UserError

SAMPLES = {
    "qa-span": grammars.span_example,
    "qa": grammars.answer_example,
    "dialogue": grammars.dialogue_example,
    "tree": grammars.tree_example,
    "python": grammars.python_example,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_splits_are_reproducible_and_do_not_overlap(name: str) -> None:
    splits = generate_splits(SAMPLES[name], 200, 20, 20, seed=3)
    assert {split: len(examples) for split, examples in splits.items()} == {"train": 200, "valid": 20, "test": 20}
    keys = {split: {example.key for example in examples} for split, examples in splits.items()}
    assert len(set.union(*keys.values())) == 240
    assert splits == generate_splits(SAMPLES[name], 200, 20, 20, seed=3)
    others = {example.key for example in generate_splits(SAMPLES[name], 200, 20, 20, seed=4)["train"]}
    assert not others & (keys["valid"] | keys["test"])  # a test input is never trained on, for any seed


@pytest.mark.parametrize("name", SAMPLES)
def test_an_input_has_one_output(name: str) -> None:
    random, outputs = Random(0), {}
    for _ in range(2000):
        example = SAMPLES[name](random)
        inputs, output = (
            ("\t".join(example.turns[:-1]), example.turns[-1])
            if example.turns
            else (
                example.source,
                example.target,
            )
        )
        assert outputs.setdefault(inputs, output) == output


def test_python_computes_what_is_described() -> None:
    """The code parses, and executing it prints or assigns the value that the grammar has derived from the words."""
    random = Random(0)
    for _ in range(1000):
        example = grammars.python_example(random)
        assert len(ast.parse(example.target).body) == 1
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(example.target, names)
        command, name, *_ = example.source.split()
        if command == "print":
            assert printed.getvalue() == f"{example.result}\n", example
        else:
            assert names[name] == example.result, example


def test_answers_are_spans_of_the_context() -> None:
    random = Random(0)
    for _ in range(200):
        example = grammars.span_example(random)
        words, tags = example.source.split(), example.target.split()
        assert len(words) == len(tags)
        assert tags.count("B") == 1
        begin = tags.index("B")
        assert begin > words.index("?")
        assert all(tag == "O" for tag in tags[begin + 1 + tags.count("I") :])


def test_answers_by_hand() -> None:
    """Questions about facts with known words."""
    fact = grammars._give_fact("Anna", "Ben", "ball", Random(0))
    assert " ".join(fact.words[:7]) == "Anna gave the ball to Ben on"
    answers = {question: " ".join(fact.words[begin:end]) for question, begin, end in fact.questions}
    assert answers["Who got the ball ?"] == "Ben"
    assert answers["Who gave the ball to Ben ?"] == "Anna"
    assert answers["What did Ben get from Anna ?"] == "the ball"
    assert answers["When did Anna give the ball to Ben ?"] == f"on {fact.words[7]}"


def test_a_reservation_is_confirmed_with_the_last_values() -> None:
    """The last reply names every slot, with the value that the user said last."""
    random = Random(0)
    for _ in range(300):
        *turns, reply = grammars.dialogue_example(random).turns
        assert len(turns) % 2 == 1
        words = " ".join(turns[::2]).split()  # of the user
        for marker, confirmed in (("on", reply.split(" on ")[1]), ("name", reply.split(" name ")[1])):
            last = max(i for i, word in enumerate(words) if word.lower() == marker)
            assert words[last + 1] == confirmed.split()[0]


def parses(rules: grammars.Rules, words: tuple[str, ...]) -> int:
    """The number of trees of the sentence `words`, counted by dynamic programming over all splits."""

    @cache
    def count(symbol: str, begin: int, end: int) -> int:
        if symbol not in rules:
            return int(words[begin:end] == (symbol,))
        distinct = dict.fromkeys(rules[symbol])  # a rule may be listed twice, to be drawn more often
        return sum(count_all(rule, begin, end) for rule in distinct)

    @cache
    def count_all(rule: tuple[str, ...], begin: int, end: int) -> int:
        if len(rule) == 1:
            return count(rule[0], begin, end)
        return sum(count(rule[0], begin, middle) * count_all(rule[1:], middle, end) for middle in range(begin + 1, end))

    return count("S", 0, len(words))


def test_every_sentence_has_one_tree() -> None:
    random = Random(0)
    for _ in range(20):
        example = grammars.tree_example(random)
        words = example.source.removesuffix(" .").split()
        assert example.target.count("(") == example.target.split().count(")")
        assert [token for token in example.target.split() if token[0] not in "()"] == words
        assert parses(grammars.TREE_RULES, tuple(words)) == 1


def test_files(tmp_path: Path) -> None:
    write_generated("dialogue", tmp_path / "new" / "dialogue", {"train": 20, "valid": 2, "test": 3})
    lines = (tmp_path / "new" / "dialogue" / "test.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert len(json.loads(lines[0])["turns"]) % 2 == 0
    write_generated("tree", tmp_path / "tree", {"train": 20, "valid": 2, "test": 3})
    assert (tmp_path / "tree" / "train.tsv").read_text().count("\t") == 20
    assert set(SAMPLES) < set(GENERATORS)
    with pytest.raises(UserError, match="did you mean 'tree'"):
        write_generated("trees", tmp_path / "x", {})
    with pytest.raises(UserError, match="pairs"):
        write_generated("tree", tmp_path / "x", {"pairs": 3})
    with pytest.raises(UserError, match="too few different ones"):
        generate_splits(lambda random: grammars.GeneratedExample("a", "b"), 1, 1, 1, 0)
    assert not (tmp_path / "x").exists()
