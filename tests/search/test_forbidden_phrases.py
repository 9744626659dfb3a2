"""Forbidden phrases are never written, and nothing else is forbidden."""

from __future__ import annotations

import codecs
import random
import re
import unicodedata
from functools import cache

import pytest
import tokenizers
import torch

from dragoman.errors import UserError
from dragoman.search import Beam, Sample, SpecialTokens, TokenSearch, build_engine
from dragoman.search.forbidden_phrases import ForbiddenPhrases, PhraseAutomaton
from dragoman.text import Tokenizer, learn_tokenizer, split_words
from dragoman.text.hf_tokenizer_files import TokenConfig
from dragoman.text.imported_tokenizer import ImportedTokenizer
from laws.small import pairs, small_model
from search.states import initial_state

TEXTS = [
    "the old house is in New York, the houses are old.",
    "a light-house: the lighthouse keeper's house",
    "ho us e hou se Ne w Yo rk éh ü œuf Ω",
] * 3
FORBIDDEN = ["house", "New York", "the old", "o'c", "é", "...", "so", "s o", "-h"]


def symbols_of(tokenizer: Tokenizer, closed: bool = False) -> SpecialTokens:
    return SpecialTokens(tokenizer.bos, tokenizer.eos, tuple({0, 2, 4, 5, 6}), force_eos_at_limit=closed)


def letter(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def stands_in(text: str, phrases: list[str]) -> bool:
    """The definition, with no automaton."""
    for phrase in phrases:
        pattern = r"\s+".join(map(re.escape, phrase.split()))
        for match in re.finditer(f"(?={pattern})", text):
            begin = match.start()
            before = begin and letter(text[begin - 1]) and letter(phrase[0])
            ends = [end for end in range(begin, len(text) + 1) if re.fullmatch(pattern, text[begin:end])]
            if not before and any(end == len(text) or not (letter(phrase[-1]) and letter(text[end])) for end in ends):
                return True
    return False


@cache
def letter_beginnings() -> frozenset[bytes]:
    letters = (chr(point).encode() for point in range(0x110000) if letter(chr(point)))
    return frozenset(character[:size] for character in letters for size in range(1, len(character)))


def closed(raw: bytes, phrases: list[str]) -> bool:
    """Does a phrase stand in the text whatever comes next?"""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(raw)
    half = decoder.getstate()[0]
    if stands_in(f"{text}Q", phrases):
        return True
    return bool(half) and half not in letter_beginnings() and stands_in(text, phrases)


class Tracked:
    """A processor with its state, which follows the tokens of one source."""

    def __init__(self, processor: ForbiddenPhrases, limit: int, rows: int = 1) -> None:
        self.processor, self.state = processor, initial_state(1, rows, limit)
        self.own_state = processor.init_state(self.state)

    def append(self, tokens: list[int], parents: list[int] | None = None) -> None:
        rows = None if parents is None else torch.tensor([parents])
        self.own_state = self.processor.update(self.own_state, torch.tensor([tokens]), rows)
        self.state.step = self.state.step + 1

    def forbidden(self, vocab_size: int) -> torch.Tensor:
        """1 K V"""
        logits = torch.zeros(1, self.state.tokens.shape[1], vocab_size)
        return self.processor(self.state, self.own_state, logits) == -torch.inf


KINDS = [(kind, marker) for kind in ("bpe", "unigram", "character", "byte") for marker in ("initial", "final")]


WORDS = [*KINDS, ("word", "initial"), ("word", "final")]


@cache
def tokenizer_of(kind: str, marker: str) -> Tokenizer:
    return learn_tokenizer(TEXTS, kind=kind, size=310, marker=marker, coverage=0.98)


def walk(draw: random.Random, tokenizer: Tokenizer, phrases: list[str]) -> list[int]:
    """Tokens that come near the phrases: such as pieces of them, letter by letter, and half characters."""
    tokens: list[int] = []
    for _ in range(draw.randint(2, 5)):
        text = draw.choice([*phrases, *phrases, *TEXTS])
        begin = draw.randrange(len(text)) if draw.random() < 0.3 else 0
        text = draw.choice(["", " ", "-", "\n"]) + text[begin : begin + 12] + draw.choice(["", " ", "-", "\n"])
        how = draw.random()
        if how < 0.4:
            tokens += tokenizer.encode(text)
        elif how < 0.8:
            tokens += [7 + byte for byte in text.encode()]  # in bytes
        else:
            tokens += [draw.choice([7 + draw.randrange(256), draw.randrange(7, tokenizer.vocab_size), 7 + 0xC3])]
    return tokens


@pytest.mark.parametrize(("kind", "marker"), KINDS, ids=map(" ".join, KINDS))
def test_exactly_what_closes_a_phrase_is_forbidden(kind: str, marker: str) -> None:
    tokenizer = tokenizer_of(kind, marker)
    draw, spelled = random.Random(f"{kind} {marker}"), tokenizer.surface_forms()
    steps = stopped = 0
    for _ in range(10):
        phrases = draw.sample(FORBIDDEN, draw.randint(1, 3))
        rule = ForbiddenPhrases(tokenizer, phrases, symbols_of(tokenizer), tokenizer.vocab_size + 3)
        tracked = Tracked(rule, 1000)
        written = b""
        for token in walk(draw, tokenizer, phrases):
            found = tracked.forbidden(tokenizer.vocab_size + 3)[0, 0].tolist()
            text = written.decode(errors="replace")
            assert found[tokenizer.eos] == stands_in(text, phrases)
            asked = {token, *draw.sample(range(7, tokenizer.vocab_size), 12), 7 + 0x20, 7 + 0xC3, 7 + 0xA9, 7 + 0xE2}
            for other in asked:
                expected = closed(written + spelled[other], phrases)
                assert found[other] == expected, (text, spelled[other], phrases)
            steps += 1
            if found[token]:
                stopped += 1
                continue
            tracked.append([token])
            written += spelled[token]
    assert steps > 20
    assert stopped


@pytest.mark.parametrize(("kind", "marker"), WORDS, ids=map(" ".join, WORDS))
def test_random_allowed_walks_never_contain_a_phrase(kind: str, marker: str) -> None:
    """To their end or to their limit; and there is always something that may be written."""
    tokenizer, draw = tokenizer_of(kind, marker), random.Random(f"{kind} {marker}")
    near = {token for phrase in [*FORBIDDEN, *TEXTS] for token in tokenizer.encode(phrase)}
    for number in range(12):
        phrases = draw.sample(FORBIDDEN, draw.randint(1, 4))
        rule = ForbiddenPhrases(tokenizer, phrases, symbols_of(tokenizer, bool(number % 2)), tokenizer.vocab_size)
        limit = draw.randint(1, 25)
        tracked = Tracked(rule, limit)
        tokens: list[int] = []
        for _ in range(limit - number % 2):  # END is forced
            found = tracked.forbidden(tokenizer.vocab_size)[0, 0].tolist()
            free = [token for token in (*range(7, tokenizer.vocab_size), tokenizer.eos) if not found[token]]
            assert free
            liked = [token for token in free if token in near and token > 6] or free
            tokens.append(draw.choice(liked if draw.random() < 0.9 else free))
            if tokens[-1] == tokenizer.eos:
                break
            tracked.append([tokens[-1]])
        assert not stands_in(tokenizer.decode(tokens), phrases), (phrases, tokenizer.tokens(tokens))


def byte_level() -> ImportedTokenizer:
    """As GPT-2's: pieces of several bytes, which may begin and end within characters."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ["éa éa éü éü €a €ab …a …é …é ,…house, house… 日日é 日日é the house", *TEXTS]
    library.train_from_iterator(texts, trainer)
    names = {number: name for name, number in library.get_vocab().items()}
    eos = library.token_to_id("</s>")
    return ImportedTokenizer(library, names, {eos: TokenConfig("</s>")}, {"eos": eos})


def test_pieces_that_begin_and_end_within_characters() -> None:
    tokenizer, draw = byte_level(), random.Random(1)
    spelled = tokenizer.surface_forms()
    half = [
        n for n, spelling in enumerate(spelled) if len(spelling) > 1 and "\ufffd" in spelling.decode(errors="replace")
    ]
    assert half
    near = [n for text in ("the house …house é日日éa €a…", *TEXTS) for n in tokenizer.encode(text)]
    symbols = SpecialTokens(tokenizer.bos, tokenizer.eos)
    stopped = 0
    for _ in range(12):
        phrases = draw.sample(["house", "é", "日é", "…", "the house", "éa", "a"], 2)
        rule = ForbiddenPhrases(tokenizer, phrases, symbols, tokenizer.vocab_size)
        tracked = Tracked(rule, 1000)
        written = b""
        for _ in range(25):
            found = tracked.forbidden(tokenizer.vocab_size)[0, 0].tolist()
            token = draw.choice(draw.choice([near, half, range(1, tokenizer.vocab_size)]))
            assert found[tokenizer.eos] == stands_in(written.decode(errors="replace"), phrases)
            for other in {token, *half, *draw.sample(range(1, tokenizer.vocab_size), 10)}:
                assert found[other] == closed(written + spelled[other], phrases), (
                    written,
                    spelled[other],
                    phrases,
                )
            if found[token]:
                stopped += 1
                continue
            tracked.append([token])
            written += spelled[token]
    assert stopped


@pytest.mark.parametrize("settings", [Beam(1), Beam(4, n_best=4), Sample(n_best=4)], ids=["greedy", "beam", "sample"])
def test_searches_write_no_forbidden_phrase(settings: TokenSearch) -> None:
    """One search without the rule says what to forbid: the beginning of what was found."""
    tokenizer = learn_tokenizer(TEXTS, kind="bpe", size=300)
    symbols = symbols_of(tokenizer)
    model, p = small_model("transformer", tokenizer.vocab_size), pairs("transformer", tokenizer.vocab_size)
    asked = (p.source, p.source_lengths, torch.tensor([15, 8, 2]), torch.arange(3))
    before = [
        tokenizer.decode(h.tokens) for found in build_engine([model], symbols, settings).search(*asked) for h in found
    ]
    phrases = [phrase for text in before for phrase in split_words(text)[:2] if "\ufffd" not in phrase]
    assert any(stands_in(text, phrases) for text in before)
    rule = ForbiddenPhrases(tokenizer, phrases, symbols, model.vocab_size)
    for found in build_engine([model], symbols, settings, [rule]).search(*asked):
        assert found
        for hypothesis in found:
            assert hypothesis.score > -torch.inf
            assert not stands_in(tokenizer.decode(hypothesis.tokens), phrases)


@pytest.mark.parametrize("seed", range(30))
def test_the_automaton_knows_what_the_definition_says(seed: int) -> None:
    draw = random.Random(seed)
    characters = "aab -\u0301é\n"
    texts = ["".join(draw.choices(characters, k=draw.randint(1, 14))) for _ in range(60)]
    phrases = [text.strip()[:4].strip() for text in texts[:6]]
    phrases = [" ".join(phrase.split()) for phrase in phrases if phrase] or ["a"]
    automaton = PhraseAutomaton.build(phrases)
    for text in texts:
        assert automaton.occurs_in(text) == stands_in(text, phrases), (text, phrases)


def test_whole_words_have_no_way_out() -> None:
    """After ▁house a tokenizer of whole words can only close the word: the word itself is forbidden."""
    tokenizer = learn_tokenizer(["the house is old", "a houses boat"], kind="word")
    rule = ForbiddenPhrases(tokenizer, ["house"], symbols_of(tokenizer), tokenizer.vocab_size)
    tracked = Tracked(rule, 10)
    found = tracked.forbidden(tokenizer.vocab_size)[0, 0].tolist()
    assert [piece for piece, no in zip(tokenizer.tokens(range(tokenizer.vocab_size)), found) if no] == ["▁house"]


def after(rule: ForbiddenPhrases, tokenizer: Tokenizer, tokens: list[int], limit: int = 100) -> list[bool]:
    """What is forbidden after some tokens."""
    tracked = Tracked(rule, limit)
    for token in tokens:
        tracked.append([token])
    return tracked.forbidden(tokenizer.vocab_size)[0, 0].tolist()


def test_bytes_that_make_no_character_close_a_word() -> None:
    """UTF-8 has no longer forms than needed, no surrogates, and nothing past U+10FFFF."""
    tokenizer = tokenizer_of("byte", "initial")
    rule = ForbiddenPhrases(tokenizer, ["a"], symbols_of(tokenizer), tokenizer.vocab_size)
    a = tokenizer.encode("a")
    for first, wrong, right in [(0xE0, 0x9F, 0xA0), (0xED, 0xA0, 0x9F), (0xF0, 0x8F, 0x90)]:
        found = after(rule, tokenizer, [*a, 7 + first])
        assert (found[7 + wrong], found[7 + right]) == (True, False)
    assert not after(rule, tokenizer, a)[7 + 0xF0]
    assert after(rule, tokenizer, a)[7 + 0xF4]  # planes without letters
    assert after(rule, tokenizer, [*a, 7 + 0xF4])[7 + 0x90]


def test_the_last_token_completes_no_phrase() -> None:
    tokenizer = tokenizer_of("byte", "initial")
    rule = ForbiddenPhrases(tokenizer, ["xé"], symbols_of(tokenizer), tokenizer.vocab_size)
    tokens = tokenizer.encode("xé")
    assert not after(rule, tokenizer, tokens[:-1], limit=4)[tokens[-1]]
    assert after(rule, tokenizer, tokens[:-1], limit=3)[tokens[-1]]
    closing = ForbiddenPhrases(tokenizer, ["xé"], symbols_of(tokenizer, closed=True), tokenizer.vocab_size)
    assert after(closing, tokenizer, tokens[:-1], limit=4)[tokens[-1]]  # for END comes next
    assert not after(closing, tokenizer, tokens[:-1], limit=5)[tokens[-1]]


def test_special_symbols_are_not_there() -> None:
    """Not even within a character."""
    tokenizer = tokenizer_of("byte", "initial")
    rule = ForbiddenPhrases(tokenizer, ["é"], symbols_of(tokenizer), tokenizer.vocab_size)
    first, second = tokenizer.encode("é")
    assert after(rule, tokenizer, [first, 4, second])[tokenizer.eos]


def test_doubled_letters_count() -> None:
    tokenizer = learn_tokenizer(["book bok"], kind="word")
    rule = ForbiddenPhrases(tokenizer, ["book"], symbols_of(tokenizer), tokenizer.vocab_size)
    found = after(rule, tokenizer, [])
    assert [piece for piece, no in zip(tokenizer.tokens(range(tokenizer.vocab_size)), found) if no] == ["▁book"]


def test_every_row_follows_its_own_past() -> None:
    tokenizer = tokenizer_of("byte", "initial")
    rule = ForbiddenPhrases(tokenizer, ["ab"], symbols_of(tokenizer), tokenizer.vocab_size)
    tracked = Tracked(rule, 10, rows=3)
    a, b, space = (tokenizer.encode(text)[0] for text in ("a", "b", " "))
    tracked.append([a, b, space])
    tracked.append([b, b, a], [0, 1, 0])
    found = tracked.forbidden(tokenizer.vocab_size)
    assert found[0, :, tokenizer.eos].tolist() == [True, False, False]
    tracked.append([a, a, a], [1, 0, 2])
    assert not tracked.forbidden(tokenizer.vocab_size).any()


def test_what_cannot_be_forbidden_is_refused() -> None:
    for phrase in ("", "  ", "a\ufffd"):
        with pytest.raises(UserError, match="is empty or contains"):
            PhraseAutomaton.build([phrase])
