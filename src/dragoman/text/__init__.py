"""Text to numbers and back: tokenizers, words, special symbols."""

from dragoman.text.bpe import learn_merges
from dragoman.text.dropout import Dropout
from dragoman.text.symbols import CLASS, END, MASK, PAD, SEPARATOR, START, SYMBOLS, UNKNOWN
from dragoman.text.tokenizer import KINDS, MARKERS, Tokenizer, learn
from dragoman.text.words import word_spans, words

__all__ = [
    "CLASS",
    "END",
    "KINDS",
    "MARKERS",
    "MASK",
    "PAD",
    "SEPARATOR",
    "START",
    "SYMBOLS",
    "UNKNOWN",
    "Dropout",
    "Tokenizer",
    "learn",
    "learn_merges",
    "word_spans",
    "words",
]
