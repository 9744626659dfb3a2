"""One sentence about each setting of the systems, for `dragoman systems NAME`."""

from __future__ import annotations

SETTING_HELP: dict[str, str] = {
    "activation_dropout": "Dropout probability after the activation of feed-forward layers.",
    "attention_dropout": "Dropout probability of attention weights.",
    "attention_score": "Score function of the attention: dot, scaled-dot, general, concat, additive or tanh-product.",
    "attention_window": (
        "Number of last tokens, the current one included, to which a token attends: in every second layer of gpt3, in "
        "all layers of llama; all previous tokens if not set."
    ),
    "balance_loss_weight": "Weight of the auxiliary loss that distributes tokens evenly over experts.",
    "block_size": "Number of tokens in a block of local attention, which sees no other block.",
    "blocks_per_layer": "Number of residual blocks in a layer; the dilation doubles from block to block.",
    "cell": (
        "Recurrent cell: rnn, lstm, gru (cuDNN's: the reset gate is applied after the matrix product) or "
        "gru-reset-before (Cho et al. 2014: before it)."
    ),
    "cell_dim": (
        "Number of cells of an LSTM, whose output is projected to `model_dim`; if not set, `model_dim` cells and no "
        "projection."
    ),
    "copying": "Pointer–generator: the output layer can also copy tokens of the source (See et al. 2017).",
    "coverage_loss": (
        "Weight of the coverage loss, which keeps `copying` from attending to a source token twice (See et al. 2017); "
        "0: none."
    ),
    "decoder_layers": "Number of layers of the decoder; `layers` if not set, 1 in `hard-monotonic`.",
    "dropout": "Dropout probability of embeddings and of the output of every layer.",
    "embedding_dim": "Dimension of token embeddings; `model_dim` if not set.",
    "encoder_direction": "Direction in which the encoder reads the source: forward, backward or both.",
    "experts": "Number of experts in a mixture-of-experts layer.",
    "experts_per_token": "Number of experts that process each token.",
    "feature_dim": "Dimension of a source vector (a patch of an image, or a frame of speech).",
    "ffn_dim": "Inner dimension of feed-forward layers; 4 · `model_dim` if not set, about 8/3 · `model_dim` if gated.",
    "full_rate_convolution": (
        "Embed frames of speech as Whisper does: one convolution before those that shorten the sequence, GELU, and no "
        "projection after them. false: only the shortening ones, ReLU and a projection."
    ),
    "gated_ffn": "Use gated feed-forward layers (GLU variants, Shazeer 2020): SwiGLU, or gated GELU in t5.",
    "generator_divisor": "Factor N by which ELECTRA's generator has fewer attention heads and dimensions: 1/N of them.",
    "head_dim": "Dimension of the queries and keys of an attention head (d_k); `model_dim` / `heads` if not set.",
    "heads": "Number of attention heads in every layer.",
    "importance_loss_weight": "Weight of the loss that gives all experts the same sum of gates (Shazeer et al. 2017).",
    "input_feeding": "Concatenate the last attentional hidden state with the next decoder input (Luong et al. 2015).",
    "kernel_size": "Kernel size of convolutions, in tokens.",
    "kv_heads": "Heads of keys and values (grouped-query attention); `heads` if not set.",
    "layers": "Number of layers of the encoder and of the decoder each.",
    "load_loss_weight": "Weight of the loss that gives all experts the same number of tokens (Shazeer et al. 2017).",
    "max_distance": "Maximum distance of two tokens in relative positions; larger distances count as this one.",
    "max_jump": (
        "If `order` is 1: largest number of source positions by which the alignment moves from one target token to the "
        "next."
    ),
    "max_positions": "Number of learned position embeddings: the maximum sequence length in tokens or patches.",
    "model_dim": "Dimension of hidden states (d_model).",
    "monotonic": "Whether the alignment of target tokens with source positions never moves backward; false: it may.",
    "norm": "Normalization: layer (LayerNorm), rms (RMSNorm) or batch (BatchNorm).",
    "norm_eps": "ε of RMSNorm: added to the mean square before the square root, against division by zero.",
    "order": (
        "Order of the alignment of target tokens with source positions: 0 (a position depends on the target so far) or "
        "1 (also on the position of the previous token)."
    ),
    "pooling": "How the words of the source become one vector: mean, sum, or attention of the decoder to each word.",
    "position_buckets": "Number of relative-position buckets; each has one attention bias per head.",
    "position_dim": (
        "Dimension of positions that are concatenated to token embeddings of dimension `model_dim` − `position_dim`; "
        "if not set, positions are added."
    ),
    "position_encoding": (
        "Positions: sinusoidal or learned vectors added to embeddings, rotary (rotated queries and keys) or alibi (a "
        "bias of attention scores by distance)."
    ),
    "pre_norm": "Pre-norm: normalize the input of every sublayer (true), or the sum after it (false, post-norm).",
    "query_key_norm": "Apply RMSNorm to the queries and keys of every attention head (QK-norm).",
    "query_key_value_bias": "Add biases to the projections to queries, keys and values, but not to the output (Qwen2).",
    "relative_values": "Add vectors of relative positions to values as well as to keys (Shaw et al. 2018).",
    "rope_base": "Base of the rotary position frequencies base^(−2i/d), for pair i of the d dimensions of a head.",
    "rotary_values": "Rotate values as well as queries and keys by their positions.",
    "router_noise": "Standard deviation of the noise that is added to router logits in training; 0: none.",
    "self_attention_projections": (
        "Multiply by W_Q, W_K, W_V and W_O in self-attention; false: the simplified form softmax(xxᵀ)x without weights."
    ),
    "sentinels": (
        "Number of sentinel tokens after the vocabulary, which stand for the spans that span corruption removes from a "
        "text; None: no such tokens."
    ),
    "shared_embeddings": (
        "Use one embedding matrix for source and target, if they have one vocabulary (text.shared_vocabulary); in "
        "electra, for generator and discriminator."
    ),
    "stride": (
        "Total stride of the convolutions that shorten a sequence of frames, or of keys and values: 4 gives one output "
        "for 4 inputs."
    ),
    "tied_embeddings": "Use the target embeddings as the matrix of the output layer.",
    "token_types": "Number of segment (token type) embeddings: 2 distinguishes the sentences of a pair.",
    "unfolding_offset": "Positions that the encoder's output has in addition to `unfolding_ratio` · source length.",
    "unfolding_ratio": (
        "Length of the encoder's output as a multiple of the source length; target token t reads its position t, so "
        "that it should be as long as the target."
    ),
    "value_dim": "Dimension of the values of an attention head (d_v); `head_dim` if not set.",
}
