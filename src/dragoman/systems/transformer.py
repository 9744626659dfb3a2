"""The Transformer."""

from __future__ import annotations

from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import NoPosition, Rotary, Sinusoidal
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.systems.vocabulary import Vocabulary


def transformer(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    inner: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    inner_dropout: float = 0.0,
    pre_norm: bool = False,
    rotary: bool = False,
    tied: bool = True,
) -> EncoderDecoder:
    """Self-attention and feed-forward layers alone, sinusoidal positions (Vaswani et al. 2017, table 3).

    `pre_norm` moves the normalisation into the branches (Xiong et al. 2020), which trains without a long warm-up;
    `rotary` puts positions into queries and keys instead of the embeddings (Su et al. 2021).
    """
    wrap = PreNorm if pre_norm else PostNorm
    norm = LayerNorm() if pre_norm else None

    inside = Rotary() if rotary else NoPosition()
    outside = NoPosition() if rotary else Sinusoidal()

    def attention(visibility: Spec) -> Spec:
        part = SelfAttention(heads, visibility=visibility, position=inside, dropout=attention_dropout)
        return wrap(part, dropout=dropout)

    cross = wrap(CrossAttention(heads, dropout=attention_dropout), dropout=dropout)
    feed_forward = wrap(FeedForward(inner, dropout=inner_dropout), dropout=dropout)
    return EncoderDecoder(
        width,
        vocabulary.source,
        vocabulary.target,
        encoder=Stack((attention(Full()), feed_forward), layers, outside, dropout, norm),
        decoder=Stack((attention(Causal()), cross, feed_forward), decoder_layers or layers, outside, dropout, norm),
        embedding=Embedding(scaled=True),
        shared=vocabulary.joint,
        tied=tied,
        output_bias=False,
    )
