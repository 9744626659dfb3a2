"""Small grammars that generate examples of tasks: question answering, dialogue, parsing and code generation.

Each `…_example` function draws one example from a random generator. The words are chosen so that the answer is unique.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

PEOPLE = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta"),
    *("Hugo", "Ida", "Jonas", "Karl", "Lena", "Maria", "Tom"),
)
THINGS = ("ball", "book", "box", "coat", "cup", "hat", "key", "lamp", "letter", "map", "pen", "ring", "shoe", "watch")
COLORS = ("black", "blue", "green", "grey", "red", "white", "yellow")
PLACES = ("attic", "bathroom", "cellar", "garage", "garden", "hall", "kitchen", "office", "school", "station")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class GeneratedExample:
    """An example of a task."""

    source: str = ""  # the input, words and punctuation separated by spaces
    target: str = ""  # the output: an answer, tags, a tree or code
    turns: tuple[str, ...] = ()  # the turns of a dialogue, in place of source and target
    result: Any = None  # the value that the code of the target computes
    features: str = ""  # features of the source, such as V;PST

    @property
    def key(self) -> str:
        """The input of the example (turns, or source and features): examples with the same input are duplicates."""
        return "\t".join(self.turns or filter(None, (self.source, self.features)))

    @property
    def columns(self) -> str:
        """Source and target, and features if there are any, separated by tabs."""
        return "\t".join((self.source, self.target, self.features) if self.features else (self.source, self.target))


def split_of(text: str) -> str:
    """Return the split of a text by its checksum: "valid" and "test" have 1/16 of all texts each, "train" the rest."""
    return {0: "valid", 1: "test"}.get(zlib.crc32(text.encode()) % 16, "train")


# ---- question answering


class Question(NamedTuple):
    """A question about a sentence; the answer is the words from `begin` to `end` − 1 of the sentence."""

    text: str
    begin: int
    end: int


class YesNoQuestion(NamedTuple):
    """A question with a gap {}: with the `true` word the answer is yes, with the other `candidates` it is no."""

    template: str
    true: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """A sentence with questions about it."""

    words: tuple[str, ...]
    questions: tuple[Question, ...]
    yes_no_question: YesNoQuestion


def _put_fact(person: str, other: str, thing: str, random: Random) -> Fact:
    """Return a fact such as “Anna put the red ball in the kitchen .”, with questions about it.

    Words `begin` to `end` − 1 of the fact are the answer of a question. The person `other` does not occur in it.
    """
    color, place = random.choice(COLORS), random.choice(PLACES)
    words = (person, "put", "the", color, thing, "in", "the", place, ".")
    questions = (
        Question(f"Where is the {thing} ?", begin=5, end=8),
        Question(f"Who put the {thing} in the {place} ?", begin=0, end=1),
        Question(f"What did {person} put in the {place} ?", begin=2, end=5),
        Question(f"What is the color of the {thing} ?", begin=3, end=4),
    )
    return Fact(words, questions, YesNoQuestion(f"Is the {thing} in the {{}} ?", true=place, candidates=PLACES))


def _give_fact(person: str, other: str, thing: str, random: Random) -> Fact:
    """Return a fact such as “Anna gave the ball to Ben on Monday .”, with questions about it.

    Words `begin` to `end` − 1 of the fact are the answer of a question.
    """
    day = random.choice(DAYS)
    words = (person, "gave", "the", thing, "to", other, "on", day, ".")
    questions = (
        Question(f"Who gave the {thing} to {other} ?", begin=0, end=1),
        Question(f"Who got the {thing} ?", begin=5, end=6),
        Question(f"What did {other} get from {person} ?", begin=2, end=4),
        Question(f"When did {person} give the {thing} to {other} ?", begin=6, end=8),
    )
    return Fact(words, questions, YesNoQuestion(f"Did {{}} get the {thing} ?", true=other, candidates=PEOPLE))


def _buy_fact(person: str, other: str, thing: str, random: Random) -> Fact:
    """Return a fact such as “Anna bought the ball from Ben for ten coins .”, with questions about it.

    Words `begin` to `end` − 1 of the fact are the answer of a question.
    """
    price = random.choice(NUMBER_WORDS)
    words = (person, "bought", "the", thing, "from", other, "for", price, "coins", ".")
    questions = (
        Question(f"How much did {person} pay for the {thing} ?", begin=7, end=9),
        Question(f"Who sold the {thing} ?", begin=5, end=6),
        Question(f"Who bought the {thing} ?", begin=0, end=1),
        Question(f"What did {other} sell to {person} ?", begin=2, end=4),
    )
    yes_no_question = YesNoQuestion(f"Did the {thing} cost {{}} coins ?", true=price, candidates=NUMBER_WORDS)
    return Fact(words, questions, yes_no_question)


def _story(random: Random) -> list[Fact]:
    """Return two to four facts (sentences) about different people and things, so that every question has one answer."""
    count = random.randint(2, 4)
    people, things = random.sample(PEOPLE, 2 * count), random.sample(THINGS, count)
    make_facts = random.choices((_put_fact, _give_fact, _buy_fact), k=count)
    persons, others = people[::2], people[1::2]
    return [
        make(person, other, thing, random) for make, person, other, thing in zip(make_facts, persons, others, things)
    ]


def span_example(random: Random) -> GeneratedExample:
    """Draw extractive question answering as tagging: the source is a question and its context.

    The target has a tag for each word: B at the first word of the answer in the context, I at its other words, else O.
    """
    story = _story(random)  # facts (sentences) with questions
    number = random.randrange(len(story))
    question, begin, end = random.choice(story[number].questions)
    tags = ["O"] * len(question.split())
    for index, fact in enumerate(story):
        answer = range(begin, end) if index == number else range(0)  # words of this fact
        tags += [("B" if i == begin else "I") if i in answer else "O" for i in range(len(fact.words))]
    words = [*question.split(), *(word for fact in story for word in fact.words)]
    return GeneratedExample(" ".join(words), " ".join(tags))


def answer_example(random: Random) -> GeneratedExample:
    """Draw a question with its context; the target is a phrase of the context, yes, no, or a number of people.

    The question about the number is “How many people put something somewhere ?” or the like.
    """
    story = _story(random)  # facts (sentences) with questions
    fact = random.choice(story)
    kind = random.choice(("phrase", "phrase", "yes-no", "count"))
    if kind == "phrase":
        question, begin, end = random.choice(fact.questions)
        answer = " ".join(fact.words[begin:end])
    elif kind == "yes-no":
        template, true, candidates = fact.yes_no_question
        word = true if random.random() < 0.5 else random.choice([word for word in candidates if word != true])
        question, answer = template.format(word), "yes" if word == true else "no"
    else:
        verb, predicate = random.choice(
            (("put", "put something somewhere"), ("gave", "gave something"), ("bought", "bought something"))
        )
        question = f"How many people {predicate} ?"
        number_of_people = sum(fact.words[1] == verb for fact in story)  # the second word of a fact is its verb
        answer = ("nobody", "one", "two", "three", "four")[number_of_people]
    return GeneratedExample(" ".join([question, *(word for fact in story for word in fact.words)]), answer)


# ---- dialogue


class Slot(NamedTuple):
    """What an assistant must know for a reservation: its possible values, the phrase for one, and the question."""

    values: Sequence[str]
    phrase: str
    question: str


SLOTS: Mapping[str, Slot] = {
    "people": Slot(NUMBER_WORDS, phrase="for {}", question="For how many people ?"),
    "day": Slot(DAYS, phrase="on {}", question="On which day ?"),
    "time": Slot(NUMBER_WORDS, phrase="at {}", question="At what time ?"),
    "name": Slot(PEOPLE, phrase="under the name {}", question="Under which name ?"),
}


def dialogue_example(random: Random) -> GeneratedExample:
    """Draw a dialogue about a reservation: the assistant asks for what is missing, and then repeats everything.

    The reply is determined by all turns before it: the question for the first slot (what must be known, such as the
    day) without a value, or the confirmation. The user may correct a value.
    """
    kind = random.choice(("table", "room", "ticket", "car"))  # what is reserved
    known: dict[str, str] = {}  # values by the name of the slot, so far

    def say(slots: Sequence[str]) -> str:
        """Choose new values of these slots, add them to `known`, and return how the user says them; "" for no slots."""
        for slot in slots:
            known[slot] = random.choice([value for value in SLOTS[slot].values if value != known.get(slot)])
        return " ".join(SLOTS[slot].phrase.format(known[slot]) for slot in slots)

    def reply() -> str:
        """Return the assistant's reply to what is `known` so far: a question for the first unknown slot, or all values.

        `kind` is what is reserved, such as a table.
        """
        open_slots = [slot for slot in SLOTS if slot not in known]
        if open_slots:
            return SLOTS[open_slots[0]].question
        details = " ".join(slot.phrase.format(known[name]) for name, slot in SLOTS.items())
        return f"I have reserved a {kind} {details} ."

    first = random.sample(list(SLOTS), random.randint(0, 3))
    turns = [" ".join(filter(None, ("I need a", kind, say(first), "."))), reply()]
    while len(known) < len(SLOTS):
        missing = next(slot for slot in SLOTS if slot not in known)
        correction = [random.choice(list(known))] if known and random.random() < 0.25 else []
        answer = f"Sorry , {say(correction)} , and {say([missing])}" if correction else say([missing])
        turns += [f"{answer[0].upper()}{answer[1:]} .", reply()]
    if random.random() < 0.3:
        turns += [f"No , {say([random.choice(list(SLOTS))])} please .", reply()]
    return GeneratedExample(turns=tuple(turns))


# ---- constituency trees

Rules = Mapping[str, Sequence[tuple[str, ...]]]
#: an unambiguous grammar: a noun has one modifier at most, and "with" modifies the verb of the innermost clause;
#: the label of a symbol is what precedes its hyphen
TREE_RULES: Rules = {
    "S": [("NP", "VP")],
    "VP": [("Vi",), ("Vt", "NP"), ("Vt", "NP", "PP-with"), ("Vs", "SBAR")],
    "SBAR": [("that", "S")],
    "PP-with": [("with", "NP-simple")],
    "NP": [("NP-simple",), ("NP-simple",), ("NP-simple", "PP"), ("NP-simple", "SBAR-relative")],
    "PP": [("P", "NP")],
    "SBAR-relative": [("who", "Vt", "NP-simple")],
    "NP-simple": [("Det", "N"), ("Det", "Adj", "N"), ("Name",)],
    "Det": [("the",), ("a",), ("every",)],
    "Adj": [("brave",), ("young",), ("small",), ("happy",), ("tired",)],
    "N": [("dog",), ("man",), ("woman",), ("child",), ("teacher",), ("farmer",), ("cat",), ("king",)],
    "Name": [("Anna",), ("Ben",), ("Clara",), ("David",)],
    "P": [("near",), ("behind",), ("beside",)],
    "Vi": [("sleeps",), ("laughs",), ("waits",), ("sings",)],
    "Vt": [("sees",), ("follows",), ("helps",), ("hears",), ("likes",)],
    "Vs": [("says",), ("thinks",), ("knows",)],
}

Tree = tuple[str, list[Any]]
"""A symbol and its children: trees or words."""
MAX_TREE_DEPTH = 8


def expand(rules: Rules, symbol: str, random: Random, depth: int = 0) -> Tree:
    """Draw a tree with the root `symbol` from a context-free grammar, which maps each symbol to its right-hand sides.

    From MAX_TREE_DEPTH on, the first right-hand side of each symbol is taken, which leads to an end. `depth` is that of
    the root in the whole tree.
    """
    parts = random.choice(rules[symbol]) if depth < MAX_TREE_DEPTH else rules[symbol][0]
    # symbols without rules are words
    return symbol, [expand(rules, part, random, depth + 1) if part in rules else part for part in parts]


def tree_words(tree: Tree) -> list[str]:
    """Return the words of a tree, (symbol, children), from left to right; a child is a word or a tree."""
    _, children = tree
    return [word for child in children for word in ([child] if isinstance(child, str) else tree_words(child))]


def bracketed(tree: Tree) -> str:
    """Write a tree with labeled brackets, all tokens separated by spaces: (NP (Det the ) (N dog ) ).

    A tree is (symbol, children), and a child is a word or a tree. The label is the symbol up to a hyphen, after which
    the grammar names variants: NP for NP-simple.
    """
    symbol, children = tree
    contents = " ".join(child if isinstance(child, str) else bracketed(child) for child in children)
    return f"({symbol.partition('-')[0]} {contents} )"


def tree_example(random: Random) -> GeneratedExample:
    """Draw an example of constituency parsing: the source is a sentence, the target its tree with labeled brackets."""
    tree = expand(TREE_RULES, "S", random)
    return GeneratedExample(" ".join([*tree_words(tree), "."]), bracketed(tree))


# ---- text to Python


@dataclass(frozen=True)
class Phrase:
    """A description in English, the Python expression for it, and the value that the description means."""

    text: str
    code: str
    value: Any


WORDS = ("apple", "banana", "cherry", "lemon", "melon", "orange", "peach", "plum")
VARIABLES = ("a", "b", "n", "result", "total", "answer")
OPERATORS: Mapping[str, tuple[str, Callable[[int, int], Any]]] = {
    "plus": ("+", lambda left, right: left + right),
    "minus": ("-", lambda left, right: left - right),
    "times": ("*", lambda left, right: left * right),
}
COMPARISONS: Mapping[str, tuple[str, Callable[[int, int], bool]]] = {
    "greater than": (">", lambda left, right: left > right),
    "less than": ("<", lambda left, right: left < right),
    "equal to": ("==", lambda left, right: left == right),
}


def _list_phrase(random: Random) -> Phrase:
    """Return a phrase for a list of numbers, such as “the squares of the even numbers from 2 to 9”.

    With it come the Python expression for it and its value.
    """
    low = random.randint(1, 9)
    high = low + random.randint(2, 12)
    kind, code, values = random.choice(
        (
            ("numbers", f"range({low}, {high + 1})", list(range(low, high + 1))),
            (  # low + low % 2: the first even number
                "even numbers",
                f"[x for x in range({low}, {high + 1}) if x % 2 == 0]",
                [*range(low + low % 2, high + 1, 2)],
            ),
            (  # low | 1: the first odd number
                "odd numbers",
                f"[x for x in range({low}, {high + 1}) if x % 2 == 1]",
                [*range(low | 1, high + 1, 2)],
            ),
        )
    )
    text = f"the {kind} from {low} to {high}"
    change = random.choice(("", "", "squares", "doubles", "reverse"))
    if change == "squares":
        return Phrase(f"the squares of {text}", f"[x ** 2 for x in {code}]", [value * value for value in values])
    if change == "doubles":
        return Phrase(f"the doubles of {text}", f"[2 * x for x in {code}]", [value + value for value in values])
    if change == "reverse":
        return Phrase(f"{text} in reverse order", f"list(reversed({code}))", values[::-1])
    return Phrase(text, f"list({code})" if code.startswith("range") else code, values)


def _number_phrase(random: Random, depth: int = 0) -> Phrase:
    """Return a phrase for a number: “the sum of the odd numbers from 1 to 7”, “the length of the word apple”, ….

    With it come the Python expression for it and its value. A phrase inside another one (`depth` 1) is a constant or
    made from a list, so that operations are not nested.
    """
    kind = random.choice(("constant", "list", "list", "operation", "length") if depth == 0 else ("constant", "list"))
    if kind == "constant":
        number = random.randint(1, 20)
        return Phrase(str(number), str(number), number)
    if kind == "length":
        word = random.choice(WORDS)
        return Phrase(f"the length of the word {word}", f"len({word!r})", len(word))
    if kind == "operation":
        name = random.choice(tuple(OPERATORS))
        sign, compute = OPERATORS[name]
        left, right = _number_phrase(random, depth=1), _number_phrase(random, depth=1)
        return Phrase(
            f"{left.text} {name} {right.text}", f"{left.code} {sign} {right.code}", compute(left.value, right.value)
        )
    numbers = _list_phrase(random)
    name, function, value = random.choice(
        (
            ("sum", "sum", sum(numbers.value)),
            ("largest", "max", max(numbers.value)),
            ("smallest", "min", min(numbers.value)),
            ("count", "len", len(numbers.value)),
        )
    )
    return Phrase(f"the {name} of {numbers.text}", f"{function}({numbers.code})", value)


def _text_phrase(random: Random) -> Phrase:
    """Return a phrase for a text, its Python expression and its value: the word apple in upper case, reversed, ….

    It may also be repeated, or only its first letters. {} stands for the word in both templates.
    """
    word, count = random.choice(WORDS), random.randint(2, 4)
    text, code, value = random.choice(
        (
            ("{} in upper case", "{}.upper()", word.upper()),
            ("{} reversed", "{}[::-1]", "".join(reversed(word))),
            (f"{{}} repeated {count} times", f"{{}} * {count}", word * count),
            (f"the first {count} letters of {{}}", f"{{}}[:{count}]", word[:count]),
        )
    )
    return Phrase(text.format(f"the word {word}"), code.format(repr(word)), value)


def _conditional_phrase(random: Random) -> Phrase:
    """Return a conditional phrase: “the word plum if the sum of … is greater than 5 , otherwise the word peach”.

    With it come the Python expression for it and its value.
    """
    name = random.choice(tuple(COMPARISONS))
    sign, holds = COMPARISONS[name]
    number, limit = _number_phrase(random, depth=1), random.randint(1, 60)
    yes, no = random.sample(WORDS, 2)
    return Phrase(
        f"the word {yes} if {number.text} is {name} {limit} , otherwise the word {no}",
        f"{yes!r} if {number.code} {sign} {limit} else {no!r}",
        yes if holds(number.value, limit) else no,
    )


def python_example(random: Random) -> GeneratedExample:
    """Draw an example of code generation: a description, and a line of Python that prints or assigns its value."""
    # phrases for a number are twice as likely as the others
    draw_phrase = random.choice((_number_phrase, _number_phrase, _list_phrase, _text_phrase, _conditional_phrase))
    phrase = draw_phrase(random)
    if random.random() < 0.5:
        return GeneratedExample(f"print {phrase.text}", f"print({phrase.code})", result=phrase.value)
    variable = random.choice(VARIABLES)
    return GeneratedExample(f"let {variable} be {phrase.text}", f"{variable} = {phrase.code}", result=phrase.value)
