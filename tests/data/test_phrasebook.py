"""The phrasebook: good German, one translation a sentence, alignments by construction, held-out sentences held out."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

from dragoman.data import phrasebook
from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.grammar import (
    GERMAN_DETERMINERS,
    AlignedPair,
    Clause,
    Coordination,
    NounPhrase,
    Prepositional,
    Pronoun,
    Sentence,
    Subordinate,
)
from dragoman.data.phrasebook.lexicon import ADJECTIVES, BE, CLAUSE_VERBS, MODALS, NOUNS, TIMES, VERBS
from dragoman.errors import UserError
from dragoman.text.word_splitting import split_words


def the(noun: str, adjective: str = "", determiner: str = "the", plural: bool = False) -> NounPhrase:
    return NounPhrase(NOUNS[noun], determiner, ADJECTIVES[adjective] if adjective else None, plural)


def where(preposition: str, nominal: NounPhrase | Pronoun) -> tuple[Prepositional]:
    return (Prepositional(preposition, nominal),)


def that(noun: str, clause: Clause, determiner: str = "the", plural: bool = False) -> NounPhrase:
    return NounPhrase(NOUNS[noun], determiner, None, plural, clause)


def statement(*args: object, **settings: object) -> AlignedPair:
    return Sentence(Clause(*args, **settings)).pair()  # type: ignore[arg-type]


def question(*args: object, **settings: object) -> AlignedPair:
    return Sentence(Clause(*args, **settings), question=True).pair()  # type: ignore[arg-type]


MAN, WOMAN, DOG = the("man"), the("woman"), the("dog")
ANNA, PETER = Pronoun.name("Anna"), Pronoun.name("Peter")
ICH, YOU, HE, SHE, WE, THEY = (Pronoun.personal(word) for word in lexicon.PRONOUNS)
SLEEP, READ, CALL, HELP, GIVE, SEE = (VERBS[name] for name in ("sleep", "read", "call", "help", "give", "see"))


@pytest.mark.parametrize(
    ("pair", "english", "german"),
    [
        # agreement of verbs
        (statement(ICH, SLEEP), "I sleep.", "Ich schlafe."),
        (statement(YOU, SLEEP), "You sleep.", "Du schläfst."),
        (statement(ANNA, SLEEP), "Anna sleeps.", "Anna schläft."),
        (statement(Coordination(MAN, WOMAN), SLEEP), "The man and the woman sleep.", "Der Mann und die Frau schlafen."),
        # case of pronouns
        (statement(HE, SEE, (THEY,)), "He sees them.", "Er sieht sie."),
        (statement(THEY, HELP, (HE,)), "They help him.", "Sie helfen ihm."),
        # adjectives: weak, mixed and strong endings, nominative, accusative and dative
        (
            statement(the("man", "old"), SEE, (the("dog", "big"),)),
            "The old man sees the big dog.",
            "Der alte Mann sieht den großen Hund.",
        ),
        (statement(the("child", "young", "a"), SLEEP), "A young child sleeps.", "Ein junges Kind schläft."),
        (statement(the("man", "old", "a"), SLEEP), "An old man sleeps.", "Ein alter Mann schläft."),
        (
            statement(ANNA, HELP, (the("woman", "tired", "this"),)),
            "Anna helps this tired woman.",
            "Anna hilft dieser müden Frau.",
        ),
        (statement(ICH, READ, (the("book", "old", "", True),)), "I read old books.", "Ich lese alte Bücher."),
        (
            statement(ICH, HELP, (the("man", "old", "two", True),)),
            "I help two old men.",
            "Ich helfe zwei alten Männern.",
        ),
        (
            statement(SHE, READ, (the("book", "old", "my", True),)),
            "She reads my old books.",
            "Sie liest meine alten Bücher.",
        ),
        (
            statement(ICH, VERBS["drink"], (the("water", "cold", ""),)),
            "I drink cold water.",
            "Ich trinke kaltes Wasser.",
        ),
        (statement(the("student", determiner="every"), SLEEP), "Every student sleeps.", "Jeder Student schläft."),
        (
            statement(ICH, SEE, (the("student", determiner="every"),)),
            "I see every student.",
            "Ich sehe jeden Studenten.",
        ),
        (statement(the("child", determiner="no"), SLEEP), "No child sleeps.", "Kein Kind schläft."),
        # objects: dative, then accusative
        (
            statement(MAN, GIVE, (WOMAN, the("key", determiner="a"))),
            "The man gives the woman a key.",
            "Der Mann gibt der Frau einen Schlüssel.",
        ),
        (
            statement(WE, GIVE, (the("boy"), the("apple cake"))),
            "We give the boy the apple cake.",
            "Wir geben dem Jungen den Apfelkuchen.",
        ),
        (statement(the("hat"), VERBS["belong"], (MAN,)), "The hat belongs to the man.", "Der Hut gehört dem Mann."),
        # perfect with haben and sein
        (
            statement(the("man", "old"), CALL, (DOG,), perfect=True),
            "The old man has called the dog.",
            "Der alte Mann hat den Hund angerufen.",
        ),
        (statement(WE, VERBS["swim"], perfect=True), "We have swum.", "Wir sind geschwommen."),
        # separable verbs
        (statement(ANNA, CALL, (MAN,)), "Anna calls the man.", "Anna ruft den Mann an."),
        (statement(ICH, VERBS["stand"]), "I stand up.", "Ich stehe auf."),
        (
            statement(ANNA, CLAUSE_VERBS["say"], after=Subordinate("that", Clause(HE, CALL, (SHE,)))),
            "Anna says that he calls her.",
            "Anna sagt, dass er sie anruft.",
        ),
        # modal verbs and the future
        (
            statement(PETER, READ, (the("letter"),), modal=MODALS["must"]),
            "Peter must read the letter.",
            "Peter muss den Brief lesen.",
        ),
        (
            statement(SHE, VERBS["open"], (the("door"),), modal=MODALS["want"]),
            "She wants to open the door.",
            "Sie will die Tür aufmachen.",
        ),
        (
            statement(ICH, SLEEP, modal=MODALS["will"], time=TIMES["tomorrow"]),
            "I will sleep tomorrow.",
            "Ich werde morgen schlafen.",
        ),
        # negation
        (statement(MAN, SLEEP, negated=True), "The man does not sleep.", "Der Mann schläft nicht."),
        (statement(ICH, READ, (the("book"),), negated=True), "I do not read the book.", "Ich lese das Buch nicht."),
        (
            statement(ICH, READ, (the("book", determiner="a"),), negated=True),
            "I do not read a book.",
            "Ich lese kein Buch.",
        ),
        (
            statement(ICH, READ, (the("book", "old", "", True),), negated=True),
            "I do not read old books.",
            "Ich lese keine alten Bücher.",
        ),
        (
            statement(SHE, VERBS["work"], negated=True, phrases=where("in", the("garden")), time=TIMES["today"]),
            "She does not work in the garden today.",
            "Sie arbeitet heute nicht im Garten.",
        ),
        (
            statement(YOU, CALL, (MAN,), modal=MODALS["can"], negated=True),
            "You cannot call the man.",
            "Du kannst den Mann nicht anrufen.",
        ),
        (
            statement(WE, SLEEP, perfect=True, frequency=lexicon.FREQUENCIES["never"]),
            "We have never slept.",
            "Wir haben nie geschlafen.",
        ),
        (
            statement(the("soup"), BE, predicate=(lexicon.VERY, ADJECTIVES["warm"]), negated=True),
            "The soup is not very warm.",
            "Die Suppe ist nicht sehr warm.",
        ),
        # prepositions and their cases
        (
            statement(ANNA, VERBS["go"], phrases=where("into", the("house"))),
            "Anna goes into the house.",
            "Anna geht ins Haus.",
        ),
        (
            statement(ANNA, VERBS["go"], phrases=where("to", the("school"))),
            "Anna goes to the school.",
            "Anna geht zur Schule.",
        ),
        (
            statement(ANNA, VERBS["wait"], phrases=where("in", the("house", "old"))),
            "Anna waits in the old house.",
            "Anna wartet im alten Haus.",
        ),
        (
            statement(ANNA, VERBS["dance"], phrases=where("without", HE)),
            "Anna dances without him.",
            "Anna tanzt ohne ihn.",
        ),
        (statement(ANNA, VERBS["dance"], phrases=where("with", HE)), "Anna dances with him.", "Anna tanzt mit ihm."),
        (
            statement(ICH, VERBS["buy"], (the("book"),), phrases=where("for", WOMAN)),
            "I buy the book for the woman.",
            "Ich kaufe das Buch für die Frau.",
        ),
        # verb second
        (
            statement(MAN, READ, (the("book"),), front=TIMES["today"]),
            "Today the man reads the book.",
            "Heute liest der Mann das Buch.",
        ),
        (
            statement(WE, VERBS["arrive"], front=TIMES["every day"]),
            "Every day we arrive.",
            "Jeden Tag kommen wir an.",
        ),
        (
            statement(ICH, VERBS["laugh"], front=Subordinate("if", Clause(YOU, VERBS["sing"]))),
            "If you sing, I laugh.",
            "Wenn du singst, lache ich.",
        ),
        # verb last
        (
            statement(
                ICH, VERBS["laugh"], after=Subordinate("because", Clause(MAN, READ, (the("book"),), perfect=True))
            ),
            "I laugh because the man has read the book.",
            "Ich lache, weil der Mann das Buch gelesen hat.",
        ),
        (
            statement(
                ICH,
                CLAUSE_VERBS["know"],
                negated=True,
                after=Subordinate("whether", Clause(HE, SLEEP, modal=MODALS["can"])),
            ),
            "I do not know whether he can sleep.",
            "Ich weiß nicht, ob er schlafen kann.",
        ),
        (statement(ICH, VERBS["know"], (MAN,)), "I know the man.", "Ich kenne den Mann."),
        # questions
        (question(MAN, READ, (the("book"),)), "Does the man read the book?", "Liest der Mann das Buch?"),
        (question(YOU, SLEEP, modal=MODALS["can"], negated=True), "Can you not sleep?", "Kannst du nicht schlafen?"),
        (question(Pronoun.question(), SEE, (DOG,)), "Who sees the dog?", "Wer sieht den Hund?"),
        (question(MAN, SEE, (Pronoun.question(),)), "Whom does the man see?", "Wen sieht der Mann?"),
        (
            question(MAN, HELP, (Pronoun.question(),), perfect=True),
            "Whom has the man helped?",
            "Wem hat der Mann geholfen?",
        ),
        (question(SHE, READ, (Pronoun.question(thing=True),)), "What does she read?", "Was liest sie?"),
        (question(SHE, VERBS["go"], front=lexicon.WHERE_TO), "Where does she go?", "Wohin geht sie?"),
        (
            statement(
                ICH,
                CLAUSE_VERBS["know"],
                after=Subordinate("", Clause(SHE, VERBS["work"], front=lexicon.QUESTIONS["where"])),
            ),
            "I know where she works.",
            "Ich weiß, wo sie arbeitet.",
        ),
        # relative clauses
        (
            statement(that("man", Clause(Pronoun.relative(NOUNS["man"]), SLEEP)), VERBS["laugh"]),
            "The man who sleeps laughs.",
            "Der Mann, der schläft, lacht.",
        ),
        (
            statement(ICH, CALL, (that("man", Clause(WE, SEE, (Pronoun.relative(NOUNS["man"]),))),)),
            "I call the man whom we see.",
            "Ich rufe den Mann an, den wir sehen.",
        ),
        (
            statement(that("child", Clause(WE, HELP, (Pronoun.relative(NOUNS["child"], True),)), plural=True), SLEEP),
            "The children whom we help sleep.",
            "Die Kinder, denen wir helfen, schlafen.",
        ),
        (
            statement(ICH, SEE, (that("cat", Clause(Pronoun.relative(NOUNS["cat"]), SLEEP)),), perfect=True),
            "I have seen the cat that sleeps.",
            "Ich habe die Katze gesehen, die schläft.",
        ),
        # coordination
        (
            Sentence(Clause(ICH, SLEEP), False, "and", Clause(YOU, READ, (the("book"),))).pair(),
            "I sleep, and you read the book.",
            "Ich schlafe und du liest das Buch.",
        ),
        (
            Sentence(Clause(ICH, SLEEP), False, "but", Clause(YOU, VERBS["sing"])).pair(),
            "I sleep, but you sing.",
            "Ich schlafe, aber du singst.",
        ),
    ],
)
def test_german_translations(pair: AlignedPair, english: str, german: str) -> None:
    assert (pair.source, pair.target) == (english, german)


@pytest.mark.parametrize(
    ("pair", "alignment"),
    [
        # The man does not sleep. / Der Mann schläft nicht.
        (statement(MAN, SLEEP, negated=True), "0-0 1-1 2-2 3-3 4-2"),
        # Anna has called the man. / Anna hat den Mann angerufen.
        (statement(ANNA, CALL, (MAN,), perfect=True), "0-0 1-1 2-4 3-2 4-3"),
        # Anna calls the man. / Anna ruft den Mann an.
        (statement(ANNA, CALL, (MAN,)), "0-0 1-1 1-4 2-2 3-3"),
        # I cannot read a picture book. / Ich kann kein Bilderbuch lesen.
        (
            statement(ICH, READ, (the("picture book", determiner="a"),), modal=MODALS["can"], negated=True),
            "0-0 1-1 1-2 2-4 3-2 4-3 5-3",
        ),
        # She wants to go into the house. / Sie will ins Haus gehen.   ("to" has no counterpart)
        (
            statement(SHE, VERBS["go"], modal=MODALS["want"], phrases=where("into", the("house"))),
            "0-0 1-1 3-4 4-2 5-2 6-3",
        ),
        # I see the cat that sleeps. / Ich sehe die Katze, die schläft.
        (
            statement(ICH, SEE, (that("cat", Clause(Pronoun.relative(NOUNS["cat"]), SLEEP)),)),
            "0-0 1-1 2-2 3-3 4-4 5-5",
        ),
        # If you stand up, I laugh. / Wenn du aufstehst, lache ich.
        (
            statement(ICH, VERBS["laugh"], front=Subordinate("if", Clause(YOU, VERBS["stand"]))),
            "0-0 1-1 2-2 3-2 4-4 5-3",
        ),
    ],
)
def test_aligns_words_by_construction(pair: AlignedPair, alignment: str) -> None:
    assert " ".join(f"{source}-{target}" for source, target in pair.alignment) == alignment


@pytest.fixture(scope="module")
def sample() -> list[AlignedPair]:
    return list(islice(phrasebook.sentences(seed=3), 20_000))


def test_every_english_sentence_has_one_translation(sample: list[AlignedPair]) -> None:
    translations: dict[str, AlignedPair] = {}
    assert [pair for pair in sample if translations.setdefault(pair.source, pair) != pair] == []


def test_alignments_point_at_words_and_leave_only_function_words_alone(sample: list[AlignedPair]) -> None:
    for pair in sample[:5000]:
        source, target = pair.source.split(), pair.target.split()
        assert list(pair.alignment) == sorted(set(pair.alignment))
        assert all(0 <= i < len(source) and 0 <= j < len(target) for i, j in pair.alignment)
        aligned_source, aligned_target = ({link[side] for link in pair.alignment} for side in (0, 1))
        assert {word for i, word in enumerate(source) if i not in aligned_source} <= {"to"}
        assert {word for j, word in enumerate(target) if j not in aligned_target} == set()


def test_lengths_are_varied(sample: list[AlignedPair]) -> None:
    lengths = Counter(len(split_words(pair.source)) for pair in sample)
    assert 9 <= sum(length * count for length, count in lengths.items()) / len(sample) <= 10.5
    assert min(lengths) == 3
    assert all(lengths[length] for length in range(3, 25))
    assert max(lengths) <= 28


def test_orthography_is_natural(sample: list[AlignedPair]) -> None:
    for text in (text for pair in sample for text in (pair.source, pair.target)):
        assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)*[.?]", text), text


def test_german_commas_close_every_subordinate_clause(sample: list[AlignedPair]) -> None:
    for pair in sample:
        for conjunction in ("dass", "weil", "obwohl", "ob", "wenn", "während", "bevor"):
            assert f" {conjunction} " not in pair.target.replace(f", {conjunction} ", "")


def test_articles_agree_with_their_nouns(sample: list[AlignedPair]) -> None:
    forms: dict[str, set[str]] = {}
    for noun in NOUNS.values():
        for case in ("nom", "acc", "dat"):
            forms.setdefault(noun.form(case, False), set()).add(GERMAN_DETERMINERS["the", case, noun.gender][0])
            if noun.plural:
                forms.setdefault(noun.form(case, True), set()).add(GERMAN_DETERMINERS["the", case, "p"][0])
    checked = 0
    for pair in sample:
        german = split_words(pair.target)
        for article, noun in pairwise(german):
            after_comma = f", {article} {noun}" in pair.target  # then it may be a relative pronoun before a bare noun
            if article in ("der", "die", "das", "den", "dem") and noun in forms and not after_comma:
                checked += 1
                assert article in forms[noun], pair.target
    assert checked > 4_000


def test_every_word_is_seen_often(sample: list[AlignedPair]) -> None:
    pairs = sample
    counts = Counter(word.lower() for pair in pairs for word in split_words(pair.target))
    assert {word: count for word, count in counts.items() if count < 5} == {}
    assert sum(count < 15 for count in counts.values()) < len(counts) / 20
    said = {word for pair in pairs for word in split_words(pair.source)}
    assert {*lexicon.NAMES, *VERBS, *ADJECTIVES, *lexicon.NUMBERS, *lexicon.POSSESSIVES} <= said
    assert {part for noun in NOUNS.values() for part in noun.singular.split()} <= said


def test_the_same_seed_gives_the_same_sentences() -> None:
    state = random.getstate()
    first, again, other = (list(islice(phrasebook.sentences(seed), 100)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert random.getstate() == state


def test_held_out_sentences_are_new_and_their_words_known() -> None:
    parts = phrasebook.splits(4000, valid=60, test=70, seed=1)
    assert {name: len(pairs) for name, pairs in parts.items()} == {"train": 4000, "valid": 60, "test": 70}
    assert len({pair.source for pairs in parts.values() for pair in pairs}) == 4130
    for side in ("source", "target"):
        known = {word for pair in parts["train"] for word in split_words(getattr(pair, side))}
        held_out = {
            word for name in ("valid", "test") for pair in parts[name] for word in split_words(getattr(pair, side))
        }
        assert held_out <= known


def test_more_training_pairs_leave_the_test_set_alone() -> None:
    small, large = (phrasebook.splits(size, valid=50, test=50, seed=2) for size in (2000, 2200))
    assert small["test"] == large["test"]
    assert small["train"] == large["train"][:2000]
    elsewhere = phrasebook.splits(2000, valid=0, test=0, seed=9)["train"]
    assert not {pair.source for pair in elsewhere} & {pair.source for pair in small["test"]}


def test_writes_parallel_files_and_alignments(tmp_path: Path) -> None:
    phrasebook.write(tmp_path / "corpus", pairs=3000, valid=10, test=10, seed=4)
    parts = phrasebook.splits(3000, valid=10, test=10, seed=4)
    for name, pairs in parts.items():
        lines = {
            ending: (tmp_path / "corpus" / f"{name}.{ending}").read_text(encoding="utf-8").splitlines()
            for ending in ("en", "de", "align")
        }
        assert lines["en"] == [pair.source for pair in pairs]
        assert lines["de"] == [pair.target for pair in pairs]
        links = [tuple(tuple(map(int, link.split("-"))) for link in line.split()) for line in lines["align"]]
        assert links == [pair.alignment for pair in pairs]


def test_an_existing_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match="already exists"):
        phrasebook.write(tmp_path)
    with pytest.raises(UserError, match="already exists"):
        phrasebook.write(tmp_path / "mine")
    with pytest.raises(UserError, match="cannot be written"):
        phrasebook.write(tmp_path / "mine" / "inside")


def test_impossible_sizes_are_rejected() -> None:
    with pytest.raises(UserError, match="train sentence pairs to generate must be at least 0, but is -1"):
        phrasebook.splits(-1)
    with pytest.raises(UserError, match="raise the number of training pairs, or lower"):
        phrasebook.splits(1, valid=5, test=0)
