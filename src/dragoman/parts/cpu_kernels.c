/* Decoding steps on a CPU, for few rows: layers of Transformers, and the selection of tokens.

In a step each row has one token, so that a layer is many small operations: started one by one from Python, they take
longer than they compute. Here a whole layer is one call. All tensors are contiguous and float32. Letters as elsewhere:
R rows (B sources × K hypotheses), D model width, H heads, G heads of keys and values, E head width, S key positions.

Functions that return a number return 0, or 1 if there is no memory. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else /* one thread */
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

#if defined(__AVX512F__)
#define LANES 16 /* floats in a vector register */
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
/* Sums of a product that fit into the registers: of few rows for many vectors of outputs, or of many rows for two. */
#define BLOCKS (LANES == 16 ? 4 : 2)
#define FEW_ROWS 5
#define MANY_ROWS (LANES == 16 ? 12 : 6)
#define PART 128 /* numbers that are added in float32 */
#define CHUNK 64 /* logits whose maximum decides whether they are looked at one by one */

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct { /* y = W x + b */
    const float *weight; /* in blocks of LANES outputs: blocks × inputs × LANES */
    const float *bias;   /* may be NULL */
    int64_t outputs, inputs;
} Linear;

typedef struct {
    int64_t kind;        /* one of the following */
    const float *weight; /* may be NULL */
    const float *bias;   /* may be NULL */
    double epsilon;
} Norm;
enum { NO_NORM, LAYER_NORM, RMS_NORM };
enum { RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH, SIGMOID, IDENTITY }; /* in the order of ACTIVATIONS */

typedef struct { /* after(x + output(attention(before(x)))) */
    Norm before, after, query_norm, key_norm;
    Linear project; /* to queries, keys and values side by side; in cross-attention to queries only */
    Linear output;
    int64_t heads, kv_heads, width, value_width;
    double scale;
    const float *rotations; /* cos, cos, −sin, sin of the angles at each position, 2E; NULL: nothing is rotated */
} Attention;

typedef struct { /* after(x + narrow(f(widen(y)) ⊙ gate(y))), y = before(x) */
    Norm before, after;
    Linear widen, gate, narrow; /* gate.weight NULL: no gate */
    int64_t activation;
} FeedForward;

typedef struct { /* what is the same for all steps of a search; and its state, which a step changes */
    int64_t hypotheses, max_tokens; /* K, and T, the size of `output_tokens` */
    int64_t eos, min_length, num_suppressed;
    const int64_t *suppressed;
    const int64_t *max_length;                /* B */
    int64_t *step, *tokens, *output_tokens;   /* B, B K, B K T */
    float *scores;                            /* B K */
    uint8_t *done;                            /* B */
} Search;

typedef struct { /* N hypotheses of each source that are not continued */
    int64_t size;
    float *normalized_scores, *scores; /* B N */
    int64_t *lengths, *tokens;         /* B N, B N T */
} Buffer;

typedef struct {
    Buffer finished, truncated; /* by EOS, by the length limit */
    int64_t rule;               /* when a search ends: one of the following */
    int64_t n_best, divisor_grows, num_divisors;
    const float *divisors; /* length normalization by the number of tokens */
} Beam;
enum { NEVER, FULL, NOT_BETTER, STEPS }; /* "never", True, False, "steps" */

/* ---- vectors */

static inline vector splat(float value) { return value - (vector){0}; }

static inline float sum_lanes(vector x) {
#if defined(__clang__)
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
#else
    integers lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int step = LANES / 2; step > 0; step /= 2) x += __builtin_shuffle(x, lane ^ step);
    return x[0];
#endif
}

static inline vector choose(integers condition, vector yes, vector no) {
    return (vector)((condition & (integers)yes) | (~condition & (integers)no));
}

/* e^x with a relative error below 2e-7, at most e^88: 2^n e^r with |r| ≤ ln 2 / 2, e^r by its Taylor polynomial. */
static inline vector exp_vector(vector x) {
    const vector smallest = splat(-87.0f), largest = splat(88.0f);
    integers is_small = x < smallest;
    x = choose(is_small, smallest, choose(x > largest, largest, x));
    vector scaled = x * 1.44269504f + 12582912.0f; /* + 1.5 · 2^23: rounds to an integer, which the low bits hold */
    integers n = (integers)scaled - 0x4B400000;
    vector rounded = scaled - 12582912.0f;
    vector r = (x - rounded * 0.693359375f) + rounded * 2.12194440e-4f;
    vector y = splat(1.0f / 5040);
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    vector power = (vector)((n + 127) << 23);
    return choose(is_small, splat(0), y * power); /* 0 for what is not a normal number, and for −∞ */
}

/* x[i] = e^(x[i] − shift) for i < count; return the sum. */
static float exp_and_sum(float *x, int64_t count, float shift) {
    vector total = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vector e = exp_vector(*(vector *)(x + i) - shift);
        *(vector *)(x + i) = e;
        total += e;
    }
    float sum = sum_lanes(total);
    for (; i < count; i++) {
        x[i] = expf(x[i] - shift);
        sum += x[i];
    }
    return sum;
}

static float maximum(const float *x, int64_t count) {
    float best = -INFINITY;
    int64_t i = 0;
    if (count >= LANES) {
        vector most = *(const vector *)x;
        for (i = LANES; i + LANES <= count; i += LANES) {
            vector values = *(const vector *)(x + i);
            most = choose(values > most, values, most);
        }
        for (int lane = 0; lane < LANES; lane++) best = most[lane] > best ? most[lane] : best;
    }
    for (; i < count; i++) best = x[i] > best ? x[i] : best;
    return best;
}

static float dot(const float *a, const float *b, int64_t count) {
    vector total = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) total += *(const vector *)(a + i) * *(const vector *)(b + i);
    float sum = sum_lanes(total);
    for (; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* y += factor · x */
static void add_scaled(float *restrict y, const float *restrict x, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] += factor * x[i];
}

/* ---- products */

int64_t lanes(void) { return LANES; }

/* The sizes of the structures that Python describes as well. */
void struct_sizes(int64_t *sizes) {
    const int64_t all[] = {sizeof(Linear), sizeof(Norm), sizeof(Attention), sizeof(FeedForward), sizeof(Search),
                           sizeof(Buffer), sizeof(Beam)};
    memcpy(sizes, all, sizeof all);
}

/* y = W x + b for `rows` rows of x and `blocks` blocks of LANES outputs, which are constants where this is inlined, so
   that all sums stay in registers. */
static inline __attribute__((always_inline)) void product_block(
    const Linear *layer, int64_t first_block, const float *x, float *y, int rows, int blocks) {
    int64_t inputs = layer->inputs, outputs = layer->outputs;
    const float *weight = layer->weight + first_block * inputs * LANES;
    vector sums[MANY_ROWS][BLOCKS] = {{{0}}};
    for (int64_t i = 0; i < inputs; i++) {
        vector weights[BLOCKS];
        for (int b = 0; b < blocks; b++) weights[b] = *(const vector *)(weight + (b * inputs + i) * LANES);
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < blocks; b++) sums[r][b] += weights[b] * x[r * inputs + i];
    }
    for (int b = 0; b < blocks; b++) {
        int64_t first = (first_block + b) * LANES, count = outputs - first < LANES ? outputs - first : LANES;
        for (int r = 0; r < rows; r++) {
            memcpy(y + r * outputs + first, &sums[r][b], count * sizeof(float));
            if (layer->bias)
                for (int64_t o = first; o < first + count; o++) y[r * outputs + o] += layer->bias[o];
        }
    }
}

/* The same for fewer than MANY_ROWS rows. */
static inline __attribute__((always_inline)) void product_few_rows(
    const Linear *layer, int64_t first_block, const float *x, int64_t rows, float *y, int blocks) {
    for (; rows >= FEW_ROWS; rows -= FEW_ROWS, x += FEW_ROWS * layer->inputs, y += FEW_ROWS * layer->outputs)
        product_block(layer, first_block, x, y, FEW_ROWS, blocks);
    switch (rows) {
    case 4: product_block(layer, first_block, x, y, 4, blocks); break;
    case 3: product_block(layer, first_block, x, y, 3, blocks); break;
    case 2: product_block(layer, first_block, x, y, 2, blocks); break;
    case 1: product_block(layer, first_block, x, y, 1, blocks); break;
    }
}

/* The first block of outputs that this thread computes; those of the last thread end after the last one. */
static int64_t first_block(const Linear *layer, int thread) {
    int64_t count = (layer->outputs + LANES - 1) / LANES, threads = omp_get_num_threads();
    int64_t per_thread = (count + threads - 1) / threads;
    return per_thread * thread < count ? per_thread * thread : count;
}

/* y = W x + b, R × outputs: this thread's outputs. */
static void linear(const Linear *layer, const float *x, int64_t rows, float *y) {
    int thread = omp_get_thread_num();
    int64_t begin = first_block(layer, thread), end = first_block(layer, thread + 1), many = rows - rows % MANY_ROWS;
    for (int64_t block = begin; block < end && many; block += 2) /* whose weights stay in the cache */
        for (int64_t r = 0; r < many; r += MANY_ROWS)
            if (block + 2 <= end)
                product_block(layer, block, x + r * layer->inputs, y + r * layer->outputs, MANY_ROWS, 2);
            else
                product_block(layer, block, x + r * layer->inputs, y + r * layer->outputs, MANY_ROWS, 1);
    x += many * layer->inputs, y += many * layer->outputs, rows -= many;
    for (; begin + BLOCKS <= end; begin += BLOCKS) product_few_rows(layer, begin, x, rows, y, BLOCKS);
    for (; begin < end; begin++) product_few_rows(layer, begin, x, rows, y, 1);
}

/* ---- norms and activations */

/* y = norm(x), one row of `width`; x and y may be the same. */
static void normalize(const Norm *norm, const float *x, float *y, int64_t width) {
    float mean = 0, squares = 0;
    if (norm->kind == NO_NORM) {
        if (x != y) memcpy(y, x, width * sizeof(float));
        return;
    }
    if (norm->kind == LAYER_NORM) {
        vector total = {0};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) total += *(const vector *)(x + i);
        mean = sum_lanes(total);
        for (; i < width; i++) mean += x[i];
        mean /= width;
    }
    vector total = {0};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector centered = *(const vector *)(x + i) - mean;
        total += centered * centered;
    }
    squares = sum_lanes(total);
    for (; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrtf(squares / width + (float)norm->epsilon);
    for (i = 0; i < width; i++) {
        float value = (x[i] - mean) * factor;
        if (norm->weight) value *= norm->weight[i];
        y[i] = norm->bias ? value + norm->bias[i] : value;
    }
}

/* y = norm(x) for R rows, which the threads share. */
static void normalize_rows(const Norm *norm, const float *x, float *y, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) normalize(norm, x + r * width, y + r * width, width);
}

static float activate_one(int64_t kind, float x) {
    switch (kind) {
    case RELU: return x > 0 ? x : 0;
    case GELU: return 0.5f * x * (1 + erff(x * 0.70710678f));
    case GELU_TANH: return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case QUICK_GELU: return x / (1 + expf(-1.702f * x));
    case SILU: return x / (1 + expf(-x));
    case TANH: return tanhf(x);
    case SIGMOID: return 1 / (1 + expf(-x));
    default: return x;
    }
}

/* x[i] = f(x[i]) for i < count; most of them as x σ(u) or with σ, which is 1 / (1 + e^−u). */
static void activate(int64_t kind, float *x, int64_t count) {
    int64_t i = 0;
    if (kind == RELU)
        for (; i < count; i++) x[i] = x[i] > 0 ? x[i] : 0;
    if (kind != GELU && kind != IDENTITY)
        for (; i + LANES <= count; i += LANES) {
            vector v = *(vector *)(x + i), u = v;
            if (kind == QUICK_GELU) u = 1.702f * v;
            if (kind == TANH) u = 2 * v;
            if (kind == GELU_TANH) u = 2 * 0.79788456f * (v + 0.044715f * v * v * v);
            vector sigmoid = 1 / (1 + exp_vector(-u));
            if (kind != SIGMOID && kind != TANH) sigmoid *= v;
            if (kind == TANH) sigmoid = 2 * sigmoid - 1;
            *(vector *)(x + i) = sigmoid;
        }
    for (; i < count; i++) x[i] = activate_one(kind, x[i]);
}

/* y = after(x + y), R × D, in place. */
static void add_and_normalize(const Norm *after, const float *x, float *y, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *sum = y + r * width;
        for (int64_t i = 0; i < width; i++) sum[i] += x[r * width + i];
        normalize(after, sum, sum, width);
    }
}

/* ---- attention */

static void softmax(float *scores, int64_t count) {
    float sum = exp_and_sum(scores, count, maximum(scores, count));
    for (int64_t i = 0; i < count; i++) scores[i] /= sum;
}

/* Rotate a head: (l, r) → (l cos − r sin, r cos + l sin); `rotation` holds cos, cos, −sin, sin. */
static void rotate(float *head, const float *rotation, int64_t width) {
    int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++) {
        float left = head[i], right = head[half + i];
        head[i] = left * rotation[i] + right * rotation[width + i];
        head[half + i] = right * rotation[half + i] + left * rotation[width + half + i];
    }
}

/* Normalize and rotate queries and keys of one token per row, write keys and values (R S G E) at the positions of the
   tokens, and attend to the keys of each hypothesis and its ancestors (B K S; NULL: each row to its own). `joined` is
   what `project` returned, side by side in R rows; the outputs of all heads are R × H·E. `scores` has S numbers for
   each thread. */
static void self_attention_heads(
    const Attention *layer, float *joined, int64_t rows, int64_t hypotheses, const int64_t *ancestors,
    const int64_t *positions, const int64_t *rotated_positions, float *keys, float *values, int64_t length,
    float *scores, float *y) {
    int64_t heads = layer->heads, groups = layer->kv_heads, width = layer->width, value_width = layer->value_width;
    int64_t stride = (heads + groups) * width + groups * value_width;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads + groups; h++) {
            float *head = joined + r * stride + h * width;
            normalize(h < heads ? &layer->query_norm : &layer->key_norm, head, head, width);
            if (layer->rotations) rotate(head, layer->rotations + rotated_positions[r] * 2 * width, width);
            if (h < heads) continue;
            int64_t slot = (r * length + positions[r]) * groups + h - heads;
            memcpy(keys + slot * width, head, width * sizeof(float));
            const float *value = joined + r * stride + (heads + groups) * width + (h - heads) * value_width;
            memcpy(values + slot * value_width, value, value_width * sizeof(float));
        }
    float *own = scores + omp_get_thread_num() * length;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t count = positions[r] + 1, group = h / (heads / groups), first = r - r % hypotheses;
            const int64_t *writers = ancestors ? ancestors + r * length : NULL;
            const float *query = joined + r * stride + h * width;
            for (int64_t s = 0; s < count; s++) {
                int64_t row = writers ? first + writers[s] : r;
                own[s] = dot(query, keys + ((row * length + s) * groups + group) * width, width) * (float)layer->scale;
            }
            softmax(own, count);
            float *output = y + (r * heads + h) * value_width;
            memset(output, 0, value_width * sizeof(float));
            for (int64_t s = 0; s < count; s++) {
                int64_t row = writers ? first + writers[s] : r;
                add_scaled(output, values + ((row * length + s) * groups + group) * value_width, own[s], value_width);
            }
        }
}

/* Attend to the keys (B G E S: the positions of an element side by side) and values (B G S E) of the encoded source.
   `mask` (B S) is added to the scores; NULL: none. `queries` is R × H·E. */
static void cross_attention_heads(
    const Attention *layer, float *queries, int64_t rows, int64_t hypotheses, const float *keys, const float *values,
    const float *mask, int64_t length, float *scores, float *y) {
    int64_t heads = layer->heads, groups = layer->kv_heads, width = layer->width, value_width = layer->value_width;
    float *own = scores + omp_get_thread_num() * length;
#pragma omp for collapse(2) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t source = r / hypotheses, group = source * groups + h / (heads / groups);
            float *query = queries + (r * heads + h) * width;
            normalize(&layer->query_norm, query, query, width);
            memset(own, 0, length * sizeof(float));
            for (int64_t e = 0; e < width; e++)
                add_scaled(own, keys + (group * width + e) * length, query[e] * (float)layer->scale, length);
            if (mask) add_scaled(own, mask + source * length, 1, length);
            softmax(own, length);
            float *output = y + (r * heads + h) * value_width;
            memset(output, 0, value_width * sizeof(float));
            for (int64_t s = 0; s < length; s++)
                add_scaled(output, values + (group * length + s) * value_width, own[s], value_width);
        }
}

/* ---- functions that Python calls */

int self_attention_step(
    const Attention *layer, const float *x, float *y, int64_t rows, int64_t hypotheses, const int64_t *ancestors,
    const int64_t *positions, const int64_t *rotated_positions, float *keys, float *values, int64_t length,
    int64_t threads) {
    int64_t dim = layer->output.outputs, joined_width = layer->project.outputs, heads_width = layer->output.inputs;
    float *normalized = malloc((rows * (dim + joined_width + heads_width) + threads * length) * sizeof(float));
    if (!normalized) return 1;
    float *joined = normalized + rows * dim, *heads = joined + rows * joined_width, *scores = heads + rows * heads_width;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        normalize_rows(&layer->before, x, normalized, rows, dim);
        linear(&layer->project, normalized, rows, joined);
#pragma omp barrier
        self_attention_heads(layer, joined, rows, hypotheses, ancestors, positions, rotated_positions, keys, values,
                             length, scores, heads);
        linear(&layer->output, heads, rows, y);
#pragma omp barrier
        add_and_normalize(&layer->after, x, y, rows, dim);
    }
    free(normalized);
    return 0;
}

/* Only the heads: `joined`, which is changed, is what `project` returned, `y` the input of `output`. */
int self_attention_core(
    const Attention *layer, float *joined, float *y, int64_t rows, int64_t hypotheses, const int64_t *ancestors,
    const int64_t *positions, const int64_t *rotated_positions, float *keys, float *values, int64_t length,
    int64_t threads) {
    float *scores = malloc((threads * length + 1) * sizeof(float));
    if (!scores) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    self_attention_heads(layer, joined, rows, hypotheses, ancestors, positions, rotated_positions, keys, values, length,
                         scores, y);
    free(scores);
    return 0;
}

/* Only the heads: `queries`, which is changed, is what `project` returned, `y` the input of `output`. */
int cross_attention_core(
    const Attention *layer, float *queries, float *y, int64_t rows, int64_t hypotheses, const float *keys,
    const float *values, const float *mask, int64_t length, int64_t threads) {
    float *scores = malloc((threads * length + 1) * sizeof(float));
    if (!scores) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    cross_attention_heads(layer, queries, rows, hypotheses, keys, values, mask, length, scores, y);
    free(scores);
    return 0;
}

int cross_attention_step(
    const Attention *layer, const float *x, float *y, int64_t rows, int64_t hypotheses, const float *keys,
    const float *values, const float *mask, int64_t length, int64_t threads) {
    int64_t dim = layer->output.outputs, query_width = layer->project.outputs, heads_width = layer->output.inputs;
    float *normalized = malloc((rows * (dim + query_width + heads_width) + threads * length) * sizeof(float));
    if (!normalized) return 1;
    float *queries = normalized + rows * dim, *heads = queries + rows * query_width, *scores = heads + rows * heads_width;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        normalize_rows(&layer->before, x, normalized, rows, dim);
        linear(&layer->project, normalized, rows, queries);
#pragma omp barrier
        cross_attention_heads(layer, queries, rows, hypotheses, keys, values, mask, length, scores, heads);
        linear(&layer->output, heads, rows, y);
#pragma omp barrier
        add_and_normalize(&layer->after, x, y, rows, dim);
    }
    free(normalized);
    return 0;
}

int feed_forward_step(const FeedForward *layer, const float *x, float *y, int64_t rows, int64_t threads) {
    int64_t dim = layer->narrow.outputs, inner_width = layer->narrow.inputs, has_gate = layer->gate.weight != NULL;
    float *normalized = malloc(rows * (dim + (1 + has_gate) * inner_width) * sizeof(float));
    if (!normalized) return 1;
    float *inner = normalized + rows * dim, *gate = inner + rows * inner_width;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        normalize_rows(&layer->before, x, normalized, rows, dim);
        linear(&layer->widen, normalized, rows, inner);
        if (has_gate) linear(&layer->gate, normalized, rows, gate);
        int thread = omp_get_thread_num(); /* whose outputs follow */
        int64_t begin = first_block(&layer->widen, thread) * LANES, end = first_block(&layer->widen, thread + 1) * LANES;
        if (end > inner_width) end = inner_width;
        for (int64_t r = 0; r < rows; r++) {
            float *own = inner + r * inner_width;
            activate(layer->activation, own + begin, end - begin);
            for (int64_t i = begin; has_gate && i < end; i++) own[i] *= gate[r * inner_width + i];
        }
#pragma omp barrier
        linear(&layer->narrow, inner, rows, y);
#pragma omp barrier
        add_and_normalize(&layer->after, x, y, rows, dim);
    }
    free(normalized);
    return 0;
}

void linear_step(const Linear *layer, const float *x, float *y, int64_t rows, int64_t threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    linear(layer, x, rows, y);
}

/* ---- selection of tokens */

/* log Σ exp of a row of logits. */
static float log_sum_exp_of(const float *logits, int64_t width) {
    float shift = maximum(logits, width), part[PART];
    double sum = 0; /* of few numbers at a time: many small ones would be lost beside a large one */
    if (!(shift > -INFINITY && shift < INFINITY)) { /* ∞ − ∞ would be NaN */
        for (int64_t i = 0; i < width; i++) shift = logits[i] == logits[i] ? shift : NAN;
        return shift;
    }
    for (int64_t i = 0; i < width; i += PART) {
        int64_t count = width - i < PART ? width - i : PART;
        memcpy(part, logits + i, count * sizeof(float));
        sum += exp_and_sum(part, count, shift);
    }
    return shift + log(sum);
}

/* log Σ exp of each row, R × V → R. */
void log_sum_exp(const float *logits, float *y, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t r = 0; r < rows; r++) y[r] = log_sum_exp_of(logits + r * width, width);
}

/* The `count` best continuations of one source, best first: their scores, that of the hypothesis (K) plus
   min(logit (K × V) − normalizer (K), 0), and indices in K·V. Equal ones are in the order of their indices. */
static void best_of_source(
    const float *scores, const float *logits, const float *normalizer, int64_t hypotheses, int64_t width, int64_t count,
    float *best, int64_t *indices) {
    int64_t found = 0;
    for (int64_t k = 0; k < hypotheses; k++)
        for (int64_t first = 0; first < width; first += CHUNK) {
            const float *logit = logits + k * width;
            int64_t end = first + CHUNK < width ? first + CHUNK : width;
            float log_p = maximum(logit + first, end - first) - normalizer[k];
            if (found == count && !(scores[k] + (log_p > 0 ? 0 : log_p) > best[count - 1])) continue;
            for (int64_t token = first; token < end; token++) {
                log_p = logit[token] - normalizer[k];
                float score = scores[k] + (log_p > 0 ? 0 : log_p);
                if (found == count && !(score > best[count - 1])) continue;
                int64_t place = found < count ? found++ : count - 1; /* insert after all that are not smaller */
                for (; place > 0 && score > best[place - 1]; place--)
                    best[place] = best[place - 1], indices[place] = indices[place - 1];
                best[place] = score, indices[place] = k * width + token;
            }
        }
}

/* The same for B sources: scores B K, logits B K V, normalizer B K → B × count. */
void best_continuations(
    const float *scores, const float *logits, const float *normalizer, int64_t batch, int64_t hypotheses, int64_t width,
    int64_t count, float *best, int64_t *indices, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t b = 0; b < batch; b++)
        best_of_source(scores + b * hypotheses, logits + b * hypotheses * width, normalizer + b * hypotheses,
                       hypotheses, width, count, best + b * count, indices + b * count);
}

static void forbid(float *logits, int64_t width, int64_t token) {
    if (token >= 0 && token < width) logits[token] = -INFINITY;
}

/* Set the logits (K × V) of tokens to −∞ that may not be generated next by source b. */
static void restrict_logits(const Search *search, int64_t b, float *logits, int64_t width) {
    int64_t min_length = search->max_length[b] - 1 < search->min_length ? search->max_length[b] - 1 : search->min_length;
    for (int64_t k = 0; k < search->hypotheses; k++, logits += width) {
        for (int64_t i = 0; i < search->num_suppressed; i++) forbid(logits, width, search->suppressed[i]);
        if (search->step[b] < min_length) forbid(logits, width, search->eos);
    }
}

/* The token at the position of a step; sources that are done may be beyond the last one. */
static int64_t position(const Search *search, int64_t step) {
    return step < search->max_tokens ? step : search->max_tokens - 1;
}

/* A step of greedy search, one hypothesis per source. `ended` is B. The logits, B × V, are changed. */
void greedy_step(const Search *search, uint8_t *ended, float *logits, int64_t batch, int64_t width, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t b = 0; b < batch; b++) {
        float *row = logits + b * width;
        float normalizer = log_sum_exp_of(row, width);
        restrict_logits(search, b, row, width);
        float best = normalizer == normalizer ? maximum(row, width) : NAN;
        int64_t token = 0; /* the first one with the best logit; NaN is better than all others, as in torch */
        while (token < width - 1 && row[token] != best && row[token] == row[token]) token++;
        search->tokens[b] = token;
        if (!ended[b]) {
            search->output_tokens[b * search->max_tokens + position(search, search->step[b])] = token;
            search->scores[b] += best - normalizer;
        }
        search->step[b] += 1;
        ended[b] |= token == search->eos || search->step[b] >= search->max_length[b];
        search->done[b] = ended[b];
    }
}

static float divisor(const Beam *beam, int64_t length) {
    return beam->divisors[length < beam->num_divisors ? length : beam->num_divisors - 1];
}

/* Insert a hypothesis into the sorted buffer of source b, after all that are not worse. */
static void insert(const Buffer *buffer, int64_t b, float normalized, float score, int64_t length, const int64_t *tokens,
                   int64_t max_tokens) {
    float *values = buffer->normalized_scores + b * buffer->size, *scores = buffer->scores + b * buffer->size;
    int64_t *lengths = buffer->lengths + b * buffer->size, *rows = buffer->tokens + b * buffer->size * max_tokens;
    int64_t place = buffer->size;
    while (place > 0 && normalized > values[place - 1]) place--;
    if (place == buffer->size) return;
    int64_t moved = buffer->size - 1 - place;
    memmove(values + place + 1, values + place, moved * sizeof(float));
    memmove(scores + place + 1, scores + place, moved * sizeof(float));
    memmove(lengths + place + 1, lengths + place, moved * sizeof(int64_t));
    memmove(rows + (place + 1) * max_tokens, rows + place * max_tokens, moved * max_tokens * sizeof(int64_t));
    values[place] = normalized, scores[place] = score, lengths[place] = length;
    memcpy(rows + place * max_tokens, tokens, max_tokens * sizeof(int64_t));
}

static int search_ends(const Beam *beam, int64_t b, float best, int64_t length, int64_t max_length) {
    const float *finished = beam->finished.normalized_scores + b * beam->finished.size;
    float worst = finished[beam->finished.size - 1];
    switch (beam->rule) {
    case FULL: return worst > -INFINITY;
    case NOT_BETTER: return worst > -INFINITY && best / divisor(beam, length) <= worst;
    case NEVER: return best / divisor(beam, beam->divisor_grows ? max_length : length + 1) <= finished[beam->n_best - 1];
    default: return 0;
    }
}

/* A step of beam search. `parents` (B K) get the hypotheses that are continued. The logits, B K V, are changed. */
int beam_step(const Search *search, const Beam *beam, float *logits, int64_t *parents, int64_t batch, int64_t width,
              int64_t threads) {
    int64_t K = search->hypotheses, T = search->max_tokens, per_source = 2 * K * sizeof(float) + 2 * K * sizeof(int64_t);
    float *normalizers = malloc(batch * K * sizeof(float));
    char *memory = malloc(threads * (per_source + K * T * sizeof(int64_t)));
    if (!normalizers || !memory) {
        free(normalizers), free(memory);
        return 1;
    }
    log_sum_exp(logits, normalizers, batch * K, width, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t b = 0; b < batch; b++) {
        int64_t *indices = (int64_t *)(memory + omp_get_thread_num() * (per_source + K * T * sizeof(int64_t)));
        int64_t *old_tokens = indices + 2 * K, length = search->step[b] + 1, max_length = search->max_length[b];
        float *best = (float *)(old_tokens + K * T), *scores = search->scores + b * K;
        float *rows = logits + b * K * width, normalization = divisor(beam, length);
        restrict_logits(search, b, rows, width);
        best_of_source(scores, rows, normalizers + b * K, K, width, 2 * K, best, indices);
        int64_t *output_tokens = search->output_tokens + b * K * T, k = 0;
        memcpy(old_tokens, output_tokens, K * T * sizeof(int64_t));
        for (int64_t n = 0; n < K; n++) /* an EOS among the first K finishes a hypothesis */
            if (indices[n] % width == search->eos)
                insert(&beam->finished, b, best[n] / normalization, best[n], length - 1,
                       old_tokens + indices[n] / width * T, T);
        for (int64_t n = 0; n < 2 * K && k < K; n++) { /* the first K others are continued */
            int64_t token = indices[n] % width, parent = indices[n] / width;
            if (token == search->eos) continue;
            memcpy(output_tokens + k * T, old_tokens + parent * T, T * sizeof(int64_t));
            output_tokens[k * T + position(search, length - 1)] = token;
            scores[k] = best[n], search->tokens[b * K + k] = token, parents[b * K + k++] = parent;
        }
        const Buffer *truncated = &beam->truncated;
        for (k = 0; max_length == length && k < K; k++) {
            truncated->normalized_scores[b * K + k] = scores[k] / normalization;
            truncated->scores[b * K + k] = scores[k], truncated->lengths[b * K + k] = max_length;
            memcpy(truncated->tokens + (b * K + k) * T, output_tokens + k * T, T * sizeof(int64_t));
        }
        search->done[b] |= max_length <= length || search_ends(beam, b, maximum(scores, K), length, max_length);
        for (k = 0; search->done[b] && k < K; k++) scores[k] = -INFINITY; /* there are no live hypotheses */
        search->step[b] = length;
    }
    free(normalizers), free(memory);
    return 0;
}
