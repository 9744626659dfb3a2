"""The invented language: forms derived by hand from its rules."""

from __future__ import annotations

from random import Random

import pytest

from dragoman.data.generated_tasks import generate_splits
from dragoman.data.inflection_grammar import BACK, FRONT, draw_stem, inflect, inflection_example


@pytest.mark.parametrize(
    ("lemma", "features", "form"),
    [
        ("kukka", "N;NOM;SG", "kukka"),
        ("kukka", "N;GEN;SG", "kukan"),  # a closed syllable weakens kk
        ("kukka", "N;LOC;SG", "kukkasa"),  # open, back harmony
        ("kukka", "N;LOC;PL", "kukkoisa"),  # a becomes o before i
        ("kukka", "N;ABL;PL", "kukoista"),
        ("kukka", "N;GEN;SG;PSS1", "kukani"),  # the possessor replaces n
        ("kukka", "N;NOM;SG;PSS2", "kukkasi"),
        ("mätte", "N;LOC;SG", "mättesä"),  # front harmony
        ("mätte", "N;INS;SG", "mätenkö"),
        ("mätte", "N;ALL;PL", "mätille"),  # e is dropped before i
        ("siti", "N;ABL;SG", "sidistä"),  # neutral vowels take front suffixes
        ("siti", "N;LOC;PL", "siteisä"),  # i becomes e before i
        ("lantada", "V;PRS;1;SG", "lannan"),
        ("lantada", "V;PRS;3;SG", "lantaa"),  # the last vowel is long
        ("lantada", "V;PST;3;SG", "lantoi"),
        ("lantada", "V;PST;1;PL", "lannoimme"),
        ("lantada", "V;COND;2;SG;NEG", "elantoisit"),
        ("ostoda", "V;PRS;2;PL;NEG", "emostotte"),  # st has no weak grade
        ("söpidä", "V;PRS;3;PL", "söpivät"),
    ],
)
def test_forms(lemma: str, features: str, form: str) -> None:
    assert inflect(lemma, features) == form


def test_stems_are_harmonic_and_the_recipe_has_enough_words() -> None:
    random = Random(0)
    stems = {draw_stem(random) for _ in range(3000)}
    assert not [stem for stem in stems if set(stem) & set(BACK) and set(stem) & set(FRONT)]
    assert len(stems) > 2500
    splits = generate_splits(inflection_example, 300, 30, 30, seed=1)
    keys = [example.key for examples in splits.values() for example in examples]
    assert len(set(keys)) == 360
    assert all(example.columns.count("\t") == 2 for example in splits["train"])
