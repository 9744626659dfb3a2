"""The bag-of-words encoder: pooled word vectors and feed-forward layers, without recurrence, attention or positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.dropout import Dropout
from dragoman.parts.feedforward import ACTIVATIONS, Activation
from dragoman.parts.flops import Workload, matrix_flops
from dragoman.parts.mixer import Context, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class BagOfWords(Spec):
    """z_0 = mean or sum of the word vectors, z_k = f(W_k z_{k−1} + b_k): the same for every order of the words.

    The mean without layers is the bag-of-words encoder of Rush et al. (2015, §3.2), with layers the deep averaging
    network of Iyyer et al. (2015, §3). z of the last layer is the final state, and the output at every position.
    """

    layers: int = 1
    pooling: Literal["mean", "sum"] = "mean"
    activation: Activation = "tanh"
    dropout: float = 0.0

    def build(self, dim: int) -> BagOfWordsMixer:
        """Create the encoder for vectors of width `dim`."""
        return BagOfWordsMixer(self, dim)


class BagOfWordsMixer(Mixer):
    title = "bag of words"
    supports_packing = False

    def __init__(self, spec: BagOfWords, dim: int) -> None:
        """Create the layers z_k = f(W_k z_{k−1} + b_k) above the mean or sum z_0 of the word vectors, of width `dim`.

        Dropout is applied to the input of each.
        """
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(spec.layers))
        self.averages = spec.pooling == "mean"
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)

    def pool(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the mean or sum over the tokens of each row, without padding: B T D → B D."""
        token_mask = layout.token_mask
        if token_mask is None:
            return x.mean(1) if self.averages else x.sum(1)
        total = (x * token_mask[..., None]).sum(1)
        # clamp: a row without tokens gets zeros
        return total / token_mask.sum(1, keepdim=True).clamp(min=1) if self.averages else total

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Read whole sequences: x, B T D → z, the same at every position, B T D, and as final state, B 1 D.

        z starts as the mean or sum of a row's vectors (the context holds its length) and passes through the layers. In
        decoding, that is with a state, a UserError is raised.
        """
        if state is not None:
            raise UserError(
                "the layer BagOfWords reads whole sources, and cannot generate token by token as a decoder does: "
                "use it in the encoder only"
            )
        z = self.pool(x, context.layout)
        for layer in self.layers:
            z = self.activation(layer(self.dropout(z)))
        return MixerOutput(z[:, None].expand(x.shape), final_state={"hidden": z[:, None]})

    def flops(self, work: Workload) -> int:
        """Count the FLOPs for one source: each matrix is multiplied once, however many tokens it has."""
        return matrix_flops(self, work.with_tokens(1))
