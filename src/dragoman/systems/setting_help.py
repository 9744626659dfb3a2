"""One sentence about each setting of the systems, for `dragoman systems NAME`."""

from __future__ import annotations

SETTING_HELP: dict[str, str] = {
    "activation_dropout": "Dropout probability after the activation of feed-forward layers.",
    "attention_dropout": "Dropout probability of attention weights.",
    "attention_score": (
        "Score function of the attention: dot, scaled-dot, general or concat (Luong et al. 2015), additive (Bahdanau "
        "et al. 2015), or tanh-product, v·(tanh(Wq) ⊙ tanh(Uk))."
    ),
    "attention_window": (
        "Number of last tokens, the current one included, to which a token attends: in every second layer of gpt3, in "
        "all layers of llama. None: all previous tokens."
    ),
    "balance_loss_weight": "Weight of the auxiliary loss that distributes tokens evenly over experts.",
    "block_size": (
        "Number of tokens in a block of the local attention of every second layer: a token attends only to tokens of "
        "its own block."
    ),
    "blocks_per_layer": (
        "Number of residual blocks of dilated convolutions in a layer; the dilation doubles from block to block: 1, "
        "2, 4 …."
    ),
    "cell": (
        "Recurrent cell: rnn, lstm, gru (cuDNN's: the reset gate is applied after the matrix product) or "
        "gru-reset-before (Cho et al. 2014: before it)."
    ),
    "cell_dim": (
        "Number of cells of an LSTM layer, whose output is projected to `model_dim`. None: `model_dim` cells and no "
        "projection."
    ),
    "copying": "Pointer–generator: the output layer can also copy tokens of the source (See et al. 2017).",
    "coverage_loss": (
        "Weight of the coverage loss of `copying`, which penalizes repeated attention to a source token (See et al. "
        "2017); 0: none."
    ),
    "decoder_layers": "Number of layers of the decoder. None: as many as `layers`; hard-monotonic has 1 by default.",
    "dropout": "Dropout probability of embeddings and of the output of every layer.",
    "embedding_dim": (
        "Dimension of token embeddings; a projection maps them to `model_dim` if it differs. None: `model_dim`."
    ),
    "encoder_direction": (
        "Direction in which the encoder reads the source: forward, backward or both (a bidirectional encoder)."
    ),
    "experts": "Number of experts in a mixture-of-experts layer.",
    "experts_per_token": "Number of experts that process each token.",
    "feature_dim": "Dimension of a source vector (a patch of an image, or a frame of speech).",
    "ffn_dim": (
        "Inner dimension of feed-forward layers. None: 4 · `model_dim`, or about 8/3 · `model_dim` if they are gated, "
        "except in palm and t5."
    ),
    "full_rate_convolution": (
        "How frames of speech are embedded. true, as in Whisper: one convolution of stride 1, then those that shorten "
        "the sequence, with GELU and without a final projection. false: only those that shorten it, with ReLU, and a "
        "linear projection."
    ),
    "gated_ffn": (
        "Use gated feed-forward layers (GLU variants, Shazeer 2020): SwiGLU, or gated GELU in t5. false: a plain "
        "two-layer network."
    ),
    "generator_divisor": (
        "N: ELECTRA's generator has 1/N of the attention heads and dimensions of its discriminator, and as many layers."
    ),
    "head_dim": "Dimension of the queries and keys of an attention head (d_k). None: `model_dim` / `heads`.",
    "heads": "Number of attention heads in every layer.",
    "importance_loss_weight": (
        "Weight of the loss that makes the sums of the gates of all experts over a batch equal (Shazeer et al. 2017)."
    ),
    "input_feeding": "Concatenate the last attentional hidden state with the next decoder input (Luong et al. 2015).",
    "kernel_size": (
        "Kernel size of convolutions: the number of neighboring tokens that each of their outputs depends on."
    ),
    "kv_heads": "Number of heads of keys and values, fewer than `heads` for grouped-query attention. None: `heads`.",
    "layers": (
        "Number of layers: of the only stack of a decoder-only or encoder-only system; else of the encoder, and of "
        "the decoder unless `decoder_layers` is set."
    ),
    "load_loss_weight": (
        "Weight of the loss that makes all experts process equally many tokens of a batch (Shazeer et al. 2017)."
    ),
    "max_distance": (
        "Maximum distance of two tokens, in tokens, for relative positions; larger distances count as this one."
    ),
    "max_jump": (
        "Largest number of source positions by which the alignment moves forward (or back, if `monotonic` is false) "
        "from one target token to the next. Only with `order` 1, where each position depends on the previous one."
    ),
    "max_positions": (
        "Number of learned position embeddings: the maximum sequence length in tokens or patches. Systems with the "
        "setting `position_encoding` use it only if that is learned."
    ),
    "model_dim": "Dimension of hidden states (d_model).",
    "monotonic": (
        "Whether the source position to which target tokens are aligned never moves backward from token to token; "
        "false: it may."
    ),
    "norm": "Normalization: layer (LayerNorm), rms (RMSNorm) or batch (BatchNorm).",
    "norm_eps": "ε of RMSNorm: added to the mean square before the square root, against division by zero.",
    "order": (
        "What the source position of a target token depends on, besides the target so far: 0 (nothing else) or 1 (the "
        "position of the previous token: a Markov model of first order)."
    ),
    "pooling": (
        "How the words of the source become one vector: mean or sum of their embeddings, or attention (the decoder's: "
        "a weighted mean, anew for each target token)."
    ),
    "position_buckets": (
        "Number of buckets into which distances between tokens are grouped (short ones have a bucket each, longer "
        "ones up to `max_distance` share some); each has one learned attention bias per head."
    ),
    "position_dim": (
        "Dimension of position vectors that are concatenated to token embeddings, which then have dimension "
        "`model_dim` − `position_dim`. None: positions of dimension `model_dim` are added."
    ),
    "position_encoding": (
        "Position encoding: sinusoidal or learned (vectors added to embeddings), rotary (rotated queries and keys) or "
        "alibi (a bias of attention scores by distance)."
    ),
    "pre_norm": "Where a sublayer f is normalized: true (pre-norm): x + f(norm(x)); false (post-norm): norm(x + f(x)).",
    "query_key_norm": "Apply RMSNorm to the queries and keys of every attention head (QK-norm).",
    "query_key_value_bias": (
        "Add biases to the projections to queries, keys and values, but not to the output projection of attention (as "
        "in Qwen2). false: no biases."
    ),
    "relative_values": (
        "Add learned vectors of relative positions to values as well as to keys (Shaw et al. 2018). false: only to "
        "keys."
    ),
    "rope_base": "Base of the rotary position frequencies base^(−2i/d), for pair i of the d dimensions of a head.",
    "rotary_values": "Rotate values as well as queries and keys by their positions. false: only queries and keys.",
    "router_noise": "Standard deviation of the Gaussian noise that is added to router logits in training; 0: none.",
    "self_attention_projections": (
        "Multiply by the weights W_Q, W_K, W_V and W_O in self-attention; false: the simplified form softmax(xxᵀ)x "
        "without weights."
    ),
    "sentinels": (
        "Number of sentinel tokens, such as T5's <extra_id_0>, which stand for the spans that span corruption removes "
        "from a text; they are added to the vocabulary. None: no such tokens."
    ),
    "shared_embeddings": (
        "Use one embedding matrix for source and target, if they have one vocabulary (text.shared_vocabulary); in "
        "electra, one for generator and discriminator."
    ),
    "stride": (
        "Factor by which convolutions shorten a sequence: that of frames in speech (a power of two), of keys and "
        "values in every second layer of transformer-dmca. 4 gives one output for 4 inputs."
    ),
    "tied_embeddings": "Use the matrix of the target embeddings as the matrix of the output layer (tied weights).",
    "token_types": "Number of segment (token type) embeddings: 2 distinguishes first and second sentence of a pair.",
    "unfolding_offset": (
        "Number of tokens added to `unfolding_ratio` · source length, to which a source is padded; see "
        "`unfolding_ratio`."
    ),
    "unfolding_ratio": (
        "A source is padded to `unfolding_ratio` · its length + `unfolding_offset` tokens. The decoder reads the "
        "encoder's output at position t to generate target token t, so that this should be at least the length of the "
        "target."
    ),
    "value_dim": "Dimension of the values of an attention head (d_v). None: `head_dim`.",
}
