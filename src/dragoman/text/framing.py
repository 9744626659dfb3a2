"""Framing: the special tokens around the texts that a model reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP


@dataclass(frozen=True)
class Framing:
    """A source is `source_prefix` x `source_suffix`, a target `bos` y `eos`; batches are padded with `pad`.

    The defaults are those of an encoder–decoder. Imported checkpoints have their own token ids.
    """

    pad: int = PAD
    bos: int = BOS
    eos: int = EOS
    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = (EOS,)
    forced_bos: tuple[int, ...] = ()  # generated first, with probability 1
    force_eos_at_limit: bool = False  # a target that reaches the length limit gets EOS
    suppressed: tuple[int, ...] = (PAD, BOS, MASK, SEP, CLS)  # never generated


#: the encoder reads x EOS, the decoder writes BOS y EOS
ENCODER_DECODER_FRAMING = Framing()
#: the decoder reads BOS x SEP and continues with y EOS: SEP takes the place of the target's BOS
DECODER_ONLY_FRAMING = Framing(bos=SEP, source_prefix=(BOS,), source_suffix=())
#: the encoder reads CLS x SEP
ENCODER_ONLY_FRAMING = Framing(source_prefix=(CLS,), source_suffix=(SEP,))
