"""Lines without letters are recognized, and whether to copy them follows from training pairs."""

from __future__ import annotations

import pytest

from dragoman.text.untranslatable import CopyEvidence, is_untranslatable


@pytest.mark.parametrize(
    "text",
    [
        ".",
        "123",
        "3,50 €",
        "– … !?",
        "🙂 ☎",
        "https://example.org/a?b=c",
        "www.example.org",
        "(mail@example.org),",
        "12:30 <https://example.org/Äpfel>",
    ],
)
def test_numbers_punctuation_and_addresses_are_untranslatable(text: str) -> None:
    assert is_untranslatable(text)


@pytest.mark.parametrize("text", ["", " ", "5 km", "a", "See https://example.org", "B2", "é", "犬", "user@host"])
def test_text_with_letters_is_translatable(text: str) -> None:
    assert not is_untranslatable(text)


def evidence(*pairs: tuple[str, str]) -> CopyEvidence:
    return sum((CopyEvidence.from_pair(*pair) for pair in pairs), CopyEvidence())


def test_translation_copies_and_transliteration_does_not() -> None:
    assert evidence(("Der Hund schläft.", "The dog sleeps."), ("Ja!", "Yes!")).reason
    assert evidence(("狗在睡觉 。", "Dog ."), *[(f"在 {n} 年", f"in {n}") for n in range(20)]).reason
    assert not evidence(("don't", "D OW N T"), ("it's", "IH T S")).reason
    assert not evidence(("hello", "HH AH L OW")).reason
    assert not evidence(("The cat ate .", "* cat ( x _ 1 ) ; eat . agent ( x _ 2 , x _ 1 )")).reason


def test_letterless_training_sources_decide() -> None:
    sums = [(f"{n} + {n}", str(2 * n)) for n in range(10)]
    assert not evidence(*sums).reason
    assert not evidence(*sums, *[("Der Hund.", "The dog.")] * 100).reason
    assert evidence(*[("- 1 -", "- 1 -")] * 6, *[("Der Hund.", "The dog")] * 100).reason
    assert CopyEvidence.from_line("1.", "1.") == CopyEvidence(1, 1)
