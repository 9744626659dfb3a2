"""Framing: the symbols that stand around a text when a model reads or writes it."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP


@dataclass(frozen=True)
class Framing:
    """A source is `before` x `after`, a target `start` y `end`; what fills a row up is `pad`.

    A search never writes what is `banned`. The systems learned here use the symbols of `symbols`; checkpoints from
    elsewhere bring their own numbers, and may want their first written tokens `forced`.
    """

    pad: int = PAD
    bos: int = BOS
    eos: int = EOS
    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = (EOS,)
    forced_bos: tuple[int, ...] = ()
    force_eos_at_limit: bool = False  # is END put behind what reaches the length limit?
    suppressed: tuple[int, ...] = (PAD, BOS, MASK, SEP, CLS)


#: an encoder reads x END, its decoder writes START y END
ENCODER_DECODER_FRAMING = Framing()
#: a decoder alone reads START x SEPARATOR and goes on with y END: the separator starts the target
DECODER_ONLY_FRAMING = Framing(bos=SEP, source_prefix=(BOS,), source_suffix=())
#: an encoder alone reads CLASS x SEPARATOR
ENCODER_ONLY_FRAMING = Framing(source_prefix=(CLS,), source_suffix=(SEP,))
