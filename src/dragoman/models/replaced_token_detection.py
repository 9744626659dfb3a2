"""Generator and discriminator: one network puts likely words in, the other finds them out (Clark et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models.encoder_only import EncoderOnly, EncoderOnlyModel
from dragoman.models.model import BaseModelSpec, Model
from dragoman.models.usage import FILL, Usage
from dragoman.parts.mixer import Context, Layout
from dragoman.text.framing import ENCODER_ONLY_FRAMING, Framing


@dataclass(frozen=True)
class ReplacedTokens(BaseModelSpec):
    """Two encoders over the same embeddings; the discriminator, one label a token, is the model that is kept."""

    default_framing: ClassVar[Framing] = ENCODER_ONLY_FRAMING

    generator: EncoderOnly
    discriminator: EncoderOnly
    shared_embeddings: bool = True

    default_objectives: ClassVar[dict[str, str]] = {"text": "replaced", "pairs": "tagging"}

    def with_labels(self, num_labels: int) -> EncoderOnly:
        return self.discriminator.with_labels(num_labels)

    @property
    def dim(self) -> int:
        return self.discriminator.dim

    @property
    def vocab_size(self) -> int:
        return self.discriminator.vocab_size

    def build(self, dim: int = 0) -> ReplacedTokensModel:
        return ReplacedTokensModel(self)


class ReplacedTokensModel(Model):
    can_generate = False

    def __init__(self, spec: ReplacedTokens) -> None:
        super().__init__()
        self.spec: ReplacedTokens = spec
        self.vocab_size = 1
        self.discriminator = EncoderOnlyModel(spec.discriminator)
        table = self.discriminator.source_embedding
        widths = [one.embedding.width or one.dim for one in (spec.generator, spec.discriminator)]
        if spec.shared_embeddings and widths[0] != widths[1]:
            raise UserError(f"embeddings {widths[0]} and {widths[1]} wide cannot be shared: give both one width")
        self.generator = EncoderOnlyModel(spec.generator, table if spec.shared_embeddings else None)
        if spec.shared_embeddings:
            self._share_positions()
        self.output = self.discriminator.output

    def _share_positions(self) -> None:
        """Tables of positions and of segments are one as well, where both networks have the same (§3.2)."""
        one, other = self.spec.discriminator, self.spec.generator
        if one.encoder.position == other.encoder.position:
            self.generator.encoder.position = self.discriminator.encoder.position
        if one.token_types == other.token_types:
            self.generator.types = self.discriminator.types

    @property
    def usage(self) -> Usage:
        """The generator fills masks; the discriminator is a start for taggers."""
        return FILL

    @property
    def mask_predictor(self) -> EncoderOnlyModel:
        return self.generator

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
    ) -> tuple[Tensor, Context]:
        return self.discriminator.forward_features(source, source_layout, recorder=recorder, token_types=token_types)

    def forward(
        self,
        source: Tensor,
        source_lengths: Tensor,
        target: Tensor | None = None,
        target_lengths: Tensor | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """B S → B S 1: how likely each token is not the one that stood there."""
        return self.output(
            self.forward_features(source, Layout.padded(source.shape[1], source_lengths), token_types=token_types)[0]
        )
