"""Checkpoints of Marian (https://marian-nmt.github.io) in its own format, as OPUS-MT publishes them."""

from dragoman.interop.marian.marian_checkpoint import read_marian_checkpoint

__all__ = ["read_marian_checkpoint"]
