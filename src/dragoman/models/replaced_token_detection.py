"""Replaced token detection: a generator replaces tokens, a discriminator detects them (ELECTRA, Clark et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models.encoder_only import EncoderOnly, EncoderOnlyModel
from dragoman.models.model import Model, ModelSpec
from dragoman.models.usage import FILL, Usage
from dragoman.parts.embedding import TokenEmbedding
from dragoman.parts.flops import Workload
from dragoman.parts.mixer import Layout, MixerOutput
from dragoman.parts.stack import StackMixer
from dragoman.text.framing import ENCODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class ReplacedTokens(ModelSpec):
    """Two encoders with shared embeddings; the model of interest is the discriminator, with one label per token."""

    architecture: ClassVar[str] = "two encoders"
    default_framing: ClassVar[Framing] = ENCODER_ONLY_FRAMING
    default_objectives: ClassVar[dict[str, str]] = {"text": "replaced-token-detection", "pairs": "tagging"}

    generator: EncoderOnly
    discriminator: EncoderOnly
    shared_embeddings: bool = True

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.discriminator.dim

    @property
    def vocab_size(self) -> int:
        return self.discriminator.vocab_size

    def build(self, dim: int = 0) -> ReplacedTokensModel:
        return ReplacedTokensModel(self)

    def with_labels(self, num_labels: int) -> EncoderOnly:
        return self.discriminator.with_labels(num_labels)


class ReplacedTokensModel(Model):
    can_generate = False

    def __init__(self, spec: ReplacedTokens) -> None:
        super().__init__()
        self.spec: ReplacedTokens = spec
        self.vocab_size = 1
        self.discriminator = EncoderOnlyModel(spec.discriminator)
        widths = [encoder.embedding.width or encoder.dim for encoder in (spec.generator, spec.discriminator)]
        if spec.shared_embeddings and widths[0] != widths[1]:
            raise UserError(
                f"shared embeddings need one width, but generator and discriminator have {widths[0]} and {widths[1]}"
            )
        table = self.discriminator.source_embedding if spec.shared_embeddings else None
        self.generator = EncoderOnlyModel(spec.generator, table)
        if spec.shared_embeddings:
            self._share_positions()
        self.output = self.discriminator.output

    def _share_positions(self) -> None:
        """Share the tables of positions and token types as well, if both networks have the same (§3.2)."""
        discriminator, generator = self.spec.discriminator, self.spec.generator
        if discriminator.encoder.position == generator.encoder.position:
            self.generator.encoder.position = self.discriminator.encoder.position
        if discriminator.token_types == generator.token_types:
            self.generator.types = self.discriminator.types

    @property
    def usage(self) -> Usage:
        """The generator fills masks; the discriminator is a start for taggers."""
        return FILL

    @property
    def mask_predictor(self) -> EncoderOnlyModel:
        return self.generator

    @property
    def output_stack(self) -> StackMixer:
        return self.discriminator.encoder

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        return self.discriminator.embedding_tables

    @property
    def max_source_length(self) -> int | None:
        limits = (self.generator.max_source_length, self.discriminator.max_source_length)
        return min((limit for limit in limits if limit is not None), default=None)

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        return source

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor | None = None,
        target_layout: Layout | None = None,
        recorder: dict[str, list[Tensor]] | None = None,
        token_types: Tensor | None = None,
    ) -> MixerOutput:
        return self.discriminator.forward_features(source, source_layout, recorder=recorder, token_types=token_types)

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """B S → B S 1: logit that a token was replaced."""
        return self.discriminator(source, source_lengths, token_types=token_types)

    def flops(self, work: Workload) -> int:
        """Count the discriminator."""
        return self.discriminator.flops(work)

    def training_flops(self, work: Workload) -> int:
        """Count both networks."""
        generator = self.generator.flops(replace(work, width=self.spec.generator.dim))
        return 3 * (self.flops(work) + generator)
