"""Framing: the symbols that stand around a text when a model reads or writes it."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.text.symbols import CLASS, END, MASK, PAD, SEPARATOR, START


@dataclass(frozen=True)
class Framing:
    """A source is `before` x `after`, a target `start` y `end`; what fills a row up is `pad`.

    A search never writes what is `banned`. The systems learned here use the symbols of `symbols`; checkpoints from
    elsewhere bring their own numbers, and may want their first written tokens `forced`.
    """

    pad: int = PAD
    start: int = START
    end: int = END
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = (END,)
    forced: tuple[int, ...] = ()
    closed: bool = False  # is END put behind what reaches the length limit?
    banned: tuple[int, ...] = (PAD, START, MASK, SEPARATOR, CLASS)


#: an encoder reads x END, its decoder writes START y END
ENCODER_DECODER = Framing()
#: a decoder alone reads START x SEPARATOR and goes on with y END: the separator starts the target
DECODER_ONLY = Framing(start=SEPARATOR, before=(START,), after=())
#: an encoder alone reads CLASS x SEPARATOR
ENCODER_ONLY = Framing(before=(CLASS,), after=(SEPARATOR,))
