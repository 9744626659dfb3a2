"""Text to token ids and back: tokenizers, words, special tokens, framing."""

from dragoman.text.bpe_dropout import BPEDropout
from dragoman.text.bpe_merges import learn_merges
from dragoman.text.framing import DECODER_ONLY_FRAMING, ENCODER_DECODER_FRAMING, ENCODER_ONLY_FRAMING, Framing
from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from dragoman.text.tokenizer import Tokenizer, learn_tokenizer
from dragoman.text.tokenizer_types import TOKENIZER_TYPES, WORD_MARKERS
from dragoman.text.word_splitting import alignment_spans, alignment_words, split_words, word_spans

__all__ = [
    "BOS",
    "CLS",
    "DECODER_ONLY_FRAMING",
    "ENCODER_DECODER_FRAMING",
    "ENCODER_ONLY_FRAMING",
    "EOS",
    "MASK",
    "PAD",
    "SEP",
    "SPECIAL_TOKENS",
    "TOKENIZER_TYPES",
    "UNK",
    "WORD_MARKERS",
    "BPEDropout",
    "Framing",
    "Tokenizer",
    "alignment_spans",
    "alignment_words",
    "learn_merges",
    "learn_tokenizer",
    "split_words",
    "word_spans",
]
