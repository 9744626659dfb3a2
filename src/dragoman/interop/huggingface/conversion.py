"""What a family of models makes of a checkpoint, and what several families share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dragoman.interop.huggingface.weights import Origin, Stored
from dragoman.models import ModelSpec
from dragoman.parts.positions import SinusoidalPosition
from dragoman.text.framing import Framing


@dataclass(frozen=True)
class Conversion:
    """A model's spec, where each of its weights comes from, and how texts are framed for it."""

    system: str  # the named system that it is nearest to
    spec: ModelSpec
    origins: dict[str, Origin]
    framing: Framing
    labels: tuple[str, ...] = ()  # of a model that labels words
    unused: tuple[str, ...] = ()  # patterns of weights that take no part
    computed: dict[str, SinusoidalPosition] = field(
        default_factory=dict
    )  # tables that are stored, but follow a formula


@dataclass(frozen=True)
class Tables:
    """Which stored weights are the tables of embeddings and the output matrix, and which of them are one."""

    source: str
    target: str
    output: str
    shared: bool
    tied: bool
    twins: tuple[str, ...]  # patterns of further names of the same weights

    def origins(self) -> dict[str, Origin]:
        found = {"target_embedding.weight": Origin((self.target,))}
        if not self.shared:
            found["source_embedding.weight"] = Origin((self.source,))
        if not self.tied:
            found["output.weight"] = Origin((self.output,))
        return found


def tables(stored: Stored, share: bool, tie: bool) -> Tables:
    """The tables of an encoder–decoder whose configuration shares and ties them, or not.

    What is shared and tied is stored under one name or under several; where they differ nevertheless they are kept
    apart, as transformers does it. Untied tables may still come from one that older versions shared.
    """
    one, encoder, decoder = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    head = "lm_head.weight"
    together = share and tie
    source = stored.first(encoder, one, *((decoder, head) if together else ()))
    target = stored.first(decoder, one, *((encoder,) if together else ()), *((head,) if tie else ()))
    output = stored.first(head, *((one, decoder) if tie else ()), *((encoder,) if together else ()))
    return Tables(
        source,
        target,
        output,
        shared=source == target or (together and stored.same(source, target)),
        tied=output == target or (tie and stored.same(output, target)),
        twins=names(one, encoder, decoder, head),
    )


def is_tied(stored: Stored, tie: bool, table: str, head: str) -> bool:
    """Is the output matrix the table of embeddings? It is not where both are stored and differ."""
    return tie and stored.same(table, head)


def names(*plain: str) -> tuple[str, ...]:
    """Patterns that match nothing but these names."""
    return tuple(re.escape(name) for name in plain)
