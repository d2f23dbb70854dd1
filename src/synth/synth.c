/* synth.c - makes a model with random weights in the shapes of a known one; see nib_tools.h. */
#include "nib_tools.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/gguf_write.h"
#include "numbers/encode.h"
#include "synth/routing.h"
#include "synth/shapes.h"
#include "tokenizer/write_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

typedef struct synth_job {
    const synth_shape *shape;
    int64_t n_layer;
    type_id type;
    gguf_writer *writer;
    const nib_synth_options *options;
    synth_random random;
    routing routing; /* of mixtures */
    uint64_t done, total;
    char *chunk;
    nib_status status;
    nib_error err;
} synth_job;

/* ---- random numbers ---- */

static void fill_random(synth_job *job, size_t n_byte) {
    for (size_t i = 0; i < n_byte; i += sizeof(uint64_t)) {
        uint64_t r = synth_random_next(&job->random);
        memcpy(job->chunk + i, &r, sizeof r);
    }
}

/* ---- weights ----
 * Uniform codes with scales such that a row of k has about unit length: activations stay of order one through
 * any number of layers. Scales differ a little from block to block, as real ones do. */

/* Makes the mean of the 4-bit codes zero: -8 becomes 0, so 7 is the largest magnitude. With a mean, what the
 * matrices have in common would grow from layer to layer until nothing else is left. */
static void balance_codes(synth_job *job, size_t n_byte) {
    for (size_t i = 0; i < n_byte; i += sizeof(uint64_t)) {
        uint64_t x;
        memcpy(&x, job->chunk + i, sizeof x);
        x |= (~(x | x >> 1 | x >> 2 | x >> 3) & UINT64_C(0x1111111111111111)) << 3;
        memcpy(job->chunk + i, &x, sizeof x);
    }
}

static uint16_t some_scale(uint64_t random, double typical) {
    return half_from_float((float)(typical * (0.75 + (double)(random & 255) / 512)));
}

static void set_scales(synth_job *job, size_t n_block, size_t block_bytes, double typical) {
    for (size_t b = 0; b < n_block; b++) {
        uint16_t scale;
        memcpy(&scale, job->chunk + b * block_bytes, sizeof scale);
        scale = some_scale(scale, typical);
        memcpy(job->chunk + b * block_bytes, &scale, sizeof scale);
    }
}

/* Sets f16 values of random sign and mantissa, all with the exponent of `typical`. */
static void set_halves(synth_job *job, size_t n, double typical) {
    uint16_t exponent = half_from_float((float)typical) & 0x7c00;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, job->chunk + i * sizeof h, sizeof h);
        h = (uint16_t)((h & 0x83ff) | exponent);
        memcpy(job->chunk + i * sizeof h, &h, sizeof h);
    }
}

static void make_matrix_chunk(synth_job *job, size_t n_block, double unit) {
    const type_info *type = type_get(job->type);
    size_t block_bytes = (size_t)type->block_bytes;
    fill_random(job, n_block * block_bytes);
    if (job->type == TYPE_Q4_0) {
        balance_codes(job, n_block * block_bytes);
        set_scales(job, n_block, block_bytes, unit / 4.2); /* the codes' standard deviation */
    } else if (job->type == TYPE_Q8_0) {
        set_scales(job, n_block, block_bytes, unit / 74); /* of uniform -128..127 */
    } else {
        set_halves(job, n_block, unit / 1.5);
    }
}

static void put(synth_job *job, size_t n_byte) {
    job->status = gguf_writer_data(job->writer, job->chunk, n_byte, &job->err);
    job->done += n_byte;
    const nib_synth_options *o = job->options;
    if (!job->status && o->progress && !o->progress(o->user, job->shape->name, job->done, job->total))
        job->status = nib_fail(&job->err, NIB_E_CANCELLED, "cancelled");
}

/* About the root mean square of what layers have written to the stream before a layer's router (measured on
 * qwen3-30b-a3b; that of a neuron of gate and up is 0.6, and experts are averaged). */
static double noise_before(const synth_shape *s, int64_t layer) {
    const double each = 0.12 + (s->d_shared > 0 || s->family == SYNTH_GEMMA4 ? 0.36 : 0);
    return sqrt(each * ((double)layer + 0.25));
}

/* Sets the columns of routing in rows [first, first + n) of a matrix. */
static void set_routing(synth_job *job, const synth_tensor *t, int64_t first, int64_t n, uint64_t row_bytes) {
    float part[ROUTING_WIDTH];
    for (int64_t r = first; r < first + n; r++) {
        char *to = job->chunk + (uint64_t)(r - first) * row_bytes;
        if (t->role == SYNTH_WRITES && r % t->rows < ROUTING_WIDTH)
            memset(to, 0, row_bytes);
        if (t->role != SYNTH_EMBEDDING && t->role != SYNTH_OUTPUT)
            continue;
        if (t->role == SYNTH_EMBEDDING)
            routing_embed(&job->routing, (uint64_t)r, part);
        else
            routing_head((uint64_t)r, (uint64_t)t->rows, part);
        encode_row(job->type, part, NULL, ROUTING_WIDTH, to);
    }
}

static void write_matrix(synth_job *job, const synth_tensor *t) {
    const int64_t rows = t->rows * NUM_MAX(t->n_expert, 1);
    /* Attention's share is small, or what tokens have in common would be all that layers write. */
    const double length = t->role == SYNTH_WRITES && !strstr(t->name, "ffn_") ? 0.25 : 1;
    uint64_t row_bytes;
    type_row_bytes(job->type, t->cols, &row_bytes);
    const int64_t once = (int64_t)((uint64_t)CHUNK / row_bytes); /* the longest row has 107 KB */
    for (int64_t r = 0; r < rows && !job->status; r += once) {
        const int64_t n = NUM_MIN(once, rows - r);
        make_matrix_chunk(job, (size_t)(n * (t->cols / type_get(job->type)->block_elems)),
                          length / sqrt((double)t->cols));
        set_routing(job, t, r, n, row_bytes);
        put(job, (size_t)n * row_bytes);
    }
}

static void write_vector(synth_job *job, const synth_tensor *t) {
    float *values = (float *)(void *)job->chunk;
    for (int64_t i = 0; i < t->cols; i++) { /* the widest vector, 49152 floats, fits a chunk */
        float small = (float)((double)(synth_random_next(&job->random) >> 40) / (1 << 24) - 0.5) * 0.2f;
        values[i] = t->norm ? 1 + small : t->negative ? small - 1 : small;
    }
    if (t->role == SYNTH_BIAS)
        memset(values, 0, ROUTING_WIDTH * sizeof *values);
    if (t->role == SYNTH_ROUTER)
        routing_router(&job->routing, noise_before(job->shape, t->layer), t->cols, values);
    put(job, (size_t)t->cols * sizeof *values);
}

static bool write_tensor(void *user, const synth_tensor *t) {
    synth_job *job = user;
    for (int64_t r = 0; t->exact && r < t->rows && !job->status; r++)
        write_vector(job, t);
    if (t->vector)
        write_vector(job, t);
    else if (!t->exact)
        write_matrix(job, t);
    return !job->status;
}

/* ---- the header ---- */

static bool declare_tensor(void *user, const synth_tensor *t) {
    synth_job *job = user;
    int64_t shape[3] = {t->n_expert, t->rows, t->cols};
    uint64_t row_bytes;
    const int n_dim = t->vector ? 1 : t->n_expert > 0 ? 3 : 2;
    type_id type = t->vector || t->exact ? TYPE_F32 : job->type;
    type_row_bytes(type, t->cols, &row_bytes);
    job->total += (uint64_t)(t->rows * NUM_MAX(t->n_expert, 1)) * row_bytes;
    job->status = gguf_writer_tensor(job->writer, t->name, type, n_dim, shape + 3 - n_dim, &job->err);
    return !job->status;
}

static void set_int(synth_job *job, const char *arch, const char *key, int64_t value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    if (!job->status)
        job->status = gguf_writer_set_int(job->writer, full, GGUF_U32, value, &job->err);
}

static void set_float(synth_job *job, const char *arch, const char *key, double value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    if (!job->status)
        job->status = gguf_writer_set_float(job->writer, full, GGUF_F32, value, &job->err);
}

static void set_text(synth_job *job, const char *key, const char *text) {
    if (!job->status)
        job->status = gguf_writer_set_string(job->writer, key, text, strlen(text), &job->err);
}

/* A number for each layer: a, where attention is full, b elsewhere. */
static void set_by_layer(synth_job *job, const char *arch, const char *key, gguf_value type, int64_t a,
                         int64_t b) {
    int64_t each[256];
    char full[96];
    const size_t n = (size_t)NUM_MIN(job->n_layer, (int64_t)NUM_COUNT(each));
    snprintf(full, sizeof full, "%s.%s", arch, key);
    for (size_t i = 0; i < n; i++)
        each[i] = synth_is_full(job->shape, (int64_t)i) ? a : b;
    if (!job->status)
        job->status = gguf_writer_set_ints(job->writer, full, type, each, n, &job->err);
}

static void set_mixture(synth_job *job, const char *arch) {
    const synth_shape *s = job->shape;
    const bool sigmoid = s->family == SYNTH_GLM4MOE || s->family == SYNTH_DEEPSEEK2;
    set_int(job, arch, "expert_count", s->n_expert);
    set_int(job, arch, "expert_used_count", s->n_expert_used);
    set_int(job, arch, "expert_feed_forward_length", s->d_ff);
    if (s->d_shared > 0) {
        set_int(job, arch, "expert_shared_count", 1);
        set_int(job, arch, "expert_shared_feed_forward_length", s->d_shared);
    }
    if (s->n_dense > 0)
        set_int(job, arch, "leading_dense_block_count", s->n_dense);
    if (sigmoid) {
        set_int(job, arch, "expert_gating_func", 2);
        set_float(job, arch, "expert_weights_scale", s->family == SYNTH_DEEPSEEK2 ? 2.5 : 1);
        if (!job->status)
            job->status = gguf_writer_set_int(job->writer,
                                              s->family == SYNTH_GLM4MOE ? "glm4moe.expert_weights_norm"
                                                                         : "deepseek2.expert_weights_norm",
                                              GGUF_BOOL, 1, &job->err);
    }
}

static void set_attention(synth_job *job, const char *arch) {
    const synth_shape *s = job->shape;
    const bool two = s->d_head_full > 0;
    set_int(job, arch, "attention.head_count", s->n_head);
    if (s->rec_tap > 0 && s->family != SYNTH_QWEN35MOE)
        set_by_layer(job, arch, "attention.head_count_kv", GGUF_U32, s->n_kv_head, 0);
    else if (two)
        set_by_layer(job, arch, "attention.head_count_kv", GGUF_U32, s->n_kv_full, s->n_kv_head);
    else
        set_int(job, arch, "attention.head_count_kv", s->n_kv_head);
    if (two) {
        set_int(job, arch, "attention.key_length_swa", s->d_head);
        set_int(job, arch, "attention.value_length_swa", s->d_head);
        set_float(job, arch, "rope.freq_base_swa", 10000);
    }
    if (s->d_head * s->n_head != s->d_model) {
        set_int(job, arch, "attention.key_length", two ? s->d_head_full : s->d_head);
        set_int(job, arch, "attention.value_length",
                two          ? s->d_head_full
                : s->d_value ? s->d_value
                             : s->d_head);
    }
    if (s->window > 0) {
        set_int(job, arch, "attention.sliding_window", s->window);
        if (s->family == SYNTH_GEMMA4)
            set_by_layer(job, arch, "attention.sliding_window_pattern", GGUF_BOOL, 0, 1);
    }
    if (s->kv_rank > 0) {
        set_int(job, arch, "attention.q_lora_rank", s->q_rank);
        set_int(job, arch, "attention.kv_lora_rank", s->kv_rank);
    }
}

static void set_recurrent(synth_job *job, const char *arch) {
    const synth_shape *s = job->shape;
    if (s->family == SYNTH_LFM2MOE) {
        set_int(job, arch, "shortconv.l_cache", s->rec_tap);
        return;
    }
    set_int(job, arch, "ssm.conv_kernel", s->rec_tap);
    set_int(job, arch, "ssm.inner_size", s->rec_inner);
    set_int(job, arch, "ssm.time_step_rank", s->rec_head);
    set_int(job, arch, "ssm.group_count", s->rec_group);
    set_int(job, arch, "ssm.state_size", s->rec_state);
    if (s->full_every > 0)
        set_int(job, arch, "full_attention_interval", s->full_every);
}

static void set_metadata(synth_job *job) {
    static const char *const names[] = {"llama",     "qwen2",     "phi3",    "opt",
                                        "qwen3moe",  "qwen35moe", "gpt-oss", "glm4moe",
                                        "deepseek2", "gemma4",    "lfm2moe", "granitehybrid"};
    const synth_shape *s = job->shape;
    const char *arch = names[s->family];
    char name[128];
    snprintf(name, sizeof name, "%s, random weights", s->name);
    set_text(job, "general.architecture", arch);
    set_text(job, "general.name", name);
    set_text(job, "general.description", "random weights made by nibble synth");
    set_int(job, arch, "block_count", job->n_layer);
    set_int(job, arch, "context_length", s->n_ctx);
    set_int(job, arch, "embedding_length", s->d_model);
    set_int(job, arch, "feed_forward_length", s->d_dense > 0 ? s->d_dense : s->d_ff);
    set_int(job, arch, "vocab_size", s->n_vocab);
    set_attention(job, arch);
    if (s->n_expert > 0)
        set_mixture(job, arch);
    if (s->rec_tap > 0)
        set_recurrent(job, arch);
    if (s->rope_theta > 0) {
        if (s->family != SYNTH_GRANITE && s->d_head_full == 0)
            set_int(job, arch, "rope.dimension_count", s->d_turned ? s->d_turned : s->d_head);
        set_float(job, arch, "rope.freq_base", (double)s->rope_theta);
        set_float(job, arch, "attention.layer_norm_rms_epsilon", (double)s->norm_eps);
    } else {
        set_float(job, arch, "attention.layer_norm_epsilon", (double)s->norm_eps);
    }
}

/* The vocabulary of another model, filled up to the shape's. */
static nib_status copy_tokenizer(synth_job *job) {
    const char *path = job->options->tokenizer;
    const int64_t n_vocab = job->shape->n_vocab;
    const logger silent = {0};
    container *c = NULL;
    tokenizer *t = NULL;
    if (!path) { /* the key is there, so that other programs open the file too */
        set_text(job, "tokenizer.ggml.model", "no_vocab");
        return job->status;
    }
    NIB_TRY(container_open(path, &silent, &c, &job->err));
    nib_status status = tokenizer_open(c, &silent, &t, &job->err);
    if (!status && tokenizer_n_vocab(t) > n_vocab)
        status =
            nib_fail(&job->err, NIB_E_USAGE, "--tokenizer: expected at most %lld tokens, found %d in '%s'",
                     (long long)n_vocab, tokenizer_n_vocab(t), path);
    if (!status)
        status = tokenizer_write_gguf(t, n_vocab, job->writer, &job->err);
    tokenizer_close(t);
    container_close(c);
    return status;
}

static nib_status write_file(synth_job *job) {
    const canceller cancel = {job->options->cancel, job->options->user};
    gguf_writer_set_cancel(job->writer, &cancel);
    set_metadata(job);
    if (!job->status)
        job->status = copy_tokenizer(job);
    if (!job->status)
        synth_each_tensor(job->shape, job->n_layer, declare_tensor, job);
    if (!job->status && job->options->hollow)
        job->status = gguf_writer_hollow(job->writer, &job->err);
    else if (!job->status)
        synth_each_tensor(job->shape, job->n_layer, write_tensor, job);
    if (job->status)
        gguf_writer_abort(job->writer);
    else
        job->status = gguf_writer_commit(job->writer, &job->err);
    return job->status;
}

/* ---- public functions ---- */

const char *nib_synth_shape(size_t i) {
    return i < (size_t)synth_n_shape ? synth_shapes[i].name : NULL;
}

static nib_status find_shape(synth_job *job, nib_error *err) {
    const char *name = job->options->shape;
    char known[512] = "";
    size_t n = 0;
    job->shape = name ? synth_find(name) : NULL;
    if (job->shape)
        return NIB_OK;
    for (int i = 0; i < synth_n_shape && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", synth_shapes[i].name);
    return name ? nib_fail(err, NIB_E_USAGE, "shape: expected one of %s, found '%s'", known, name)
                : nib_fail(err, NIB_E_USAGE, "shape: expected one of %s, found none", known);
}

nib_status nib_synth(const nib_synth_options *options, const char *path, nib_synth_report *out,
                     nib_error *err) {
    synth_job job = {.options = options, .type = TYPE_Q4_0};
    NIB_TRY(find_shape(&job, err));
    if (options->type && (!type_from_name(options->type, &job.type) ||
                          (job.type != TYPE_Q4_0 && job.type != TYPE_Q8_0 && job.type != TYPE_F16)))
        return nib_fail(err, NIB_E_USAGE, "--type: expected q4_0, q8_0 or f16, found '%s'", options->type);
    const char *name = options->routing ? options->routing : "fitted";
    const routing_regime *regime = routing_find(name);
    if (!regime)
        return nib_fail(err, NIB_E_USAGE, "--routing: expected uniform, fitted or flat, found '%s'", name);
    job.n_layer = options->n_layer > 0 ? NUM_MIN(options->n_layer, job.shape->n_layer) : job.shape->n_layer;
    synth_shape cut = *job.shape;
    cut.n_layer = job.n_layer;
    job.shape = &cut;
    synth_random_seed(&job.random, options->seed);
    routing_begin(&job.routing, regime, options->seed + 1);
    job.chunk = mem_alloc(CHUNK + sizeof(uint64_t));
    if (!job.chunk)
        return nib_fail_nomem(err, CHUNK, "a part of a model");
    nib_status status = gguf_writer_open(path, &job.writer, &job.err);
    if (!status)
        status = write_file(&job);
    mem_free(job.chunk);
    if (status && err)
        *err = job.err;
    if (!status && out)
        *out = (nib_synth_report){job.shape->name, type_get(job.type)->name, job.n_layer, job.total};
    return status;
}
