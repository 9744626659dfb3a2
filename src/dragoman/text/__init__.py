"""Text to numbers and back: tokenizers, words, special symbols."""

from dragoman.text.bpe import learn_merges
from dragoman.text.dropout import Dropout
from dragoman.text.framing import DECODER_ONLY, ENCODER_DECODER, ENCODER_ONLY, Framing
from dragoman.text.symbols import CLASS, END, MASK, PAD, SEPARATOR, START, SYMBOLS, UNKNOWN
from dragoman.text.tokenizer import KINDS, MARKERS, Tokenizer, learn
from dragoman.text.words import alignment_spans, alignment_words, word_spans, words

__all__ = [
    "CLASS",
    "DECODER_ONLY",
    "ENCODER_DECODER",
    "ENCODER_ONLY",
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
    "Framing",
    "Tokenizer",
    "alignment_spans",
    "alignment_words",
    "learn",
    "learn_merges",
    "word_spans",
    "words",
]
