/* tinymodel.c - see tinymodel.h. */
#include "support/tinymodel.h"

#include "base/mem.h"
#include "formats/gguf_write.h"
#include "nib.h"
#include "numbers/encode.h"
#include "support/matrix.h"
#include "support/tempdir.h"
#include "memory/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct tensor {
    char name[48];
    type_id type;
    int64_t n, k; /* n 0: a vector */
    uint64_t seed;
    int layer;        /* -1: none */
    int64_t n_expert; /* matrices of experts; 0: one matrix */
} tensor;

enum { MAX_TENSORS = 256 };

static int list_tensors(const tiny_shape *s, tensor *list) {
    int64_t d = s->d_model, d_head = d / s->n_head, kv = s->n_kv_head * d_head;
    int n = 0;
    list[n++] = (tensor){"token_embd.weight", s->type, s->n_vocab, d, 0, -1};
    for (int64_t l = 0; l < s->n_layer; l++) {
        const struct {
            const char *name;
            int64_t n, k;
        } rows[] = {{"attn_norm", 0, d},      {"attn_q", d, d},
                    {"attn_k", kv, d},        {"attn_v", kv, d},
                    {"attn_output", d, d},    {"ffn_norm", 0, d},
                    {"ffn_gate", s->d_ff, d}, {"ffn_up", s->d_ff, d},
                    {"ffn_down", d, s->d_ff}, {"ffn_gate_inp", s->n_expert, d}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows - (s->n_expert == 0); i++) {
            assert_true(n < MAX_TENSORS - 2);
            const bool experts = s->n_expert > 0 && i >= 6 && i < 9, router = i == 9;
            tensor *t = &list[n++];
            *t = (tensor){"", rows[i].n && !router ? s->type : TYPE_F32, rows[i].n, rows[i].k, 0, (int)l};
            t->n_expert = experts ? s->n_expert : 0;
            snprintf(t->name, sizeof t->name, "blk.%d.%s%s.weight", (int)l, rows[i].name,
                     experts ? "_exps" : "");
        }
    }
    list[n++] = (tensor){"output_norm.weight", TYPE_F32, 0, d, 0, -1};
    if (!s->tied)
        list[n++] = (tensor){"output.weight", s->type, s->n_vocab, d, 0, -1};
    for (int i = 0; i < n; i++)
        list[i].seed = 12345 + 1000 * (uint64_t)i;
    return n;
}

/* Removes the tensors of those layers and renumbers the others. */
static int leave_out(tensor *list, int n, unsigned layers) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        tensor t = list[i];
        const char *rest = t.layer < 0 ? NULL : strchr(strchr(t.name, '.') + 1, '.');
        int before = 0;
        if (rest && (layers >> t.layer & 1))
            continue;
        for (int l = 0; l < t.layer; l++)
            before += layers >> l & 1;
        if (rest)
            snprintf(list[i].name, sizeof list[i].name, "blk.%d%.30s", t.layer - before, rest);
        memcpy(t.name, list[i].name, sizeof t.name);
        list[kept++] = t;
    }
    return kept;
}

static void set(gguf_writer *w, const char *key, int64_t value) {
    assert_int_equal(gguf_writer_set_int(w, key, GGUF_U32, value, NULL), NIB_OK);
}

/* For types without a quantizer: random blocks. */
static void write_blocks(gguf_writer *w, const tensor *t, uint64_t *seed) {
    const int64_t n = t->n * (t->n_expert ? t->n_expert : 1);
    matrix m = matrix_open(t->type, n, t->k, MATRIX_RANDOM, random_next(seed));
    for (int64_t r = 0; r < n; r++)
        assert_int_equal(gguf_writer_data(w, m.raw + (size_t)r * m.raw_row_bytes, m.raw_row_bytes, NULL),
                         NIB_OK);
    matrix_close(&m);
}

static void write_data(gguf_writer *w, const tensor *t, uint64_t *seed) {
    uint64_t bytes = 0;
    int64_t rows = (t->n ? t->n : 1) * (t->n_expert ? t->n_expert : 1);
    if (!encode_can(t->type)) {
        write_blocks(w, t, seed);
        return;
    }
    assert_true(type_row_bytes(t->type, t->k, &bytes));
    float *row = mem_array((size_t)t->k, sizeof *row);
    void *out = mem_alloc(bytes);
    assert_non_null(row);
    assert_non_null(out);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < t->k; i++)
            row[i] = t->n ? random_float(seed) * 0.3f : 1 + random_float(seed) * 0.2f;
        encode_row(t->type, row, NULL, t->k, out);
        assert_int_equal(gguf_writer_data(w, out, bytes, NULL), NIB_OK);
    }
    mem_free(row);
    mem_free(out);
}

static void describe(gguf_writer *w, const tiny_shape *s) {
    assert_int_equal(gguf_writer_set_string(w, "general.architecture", "llama", 5, NULL), NIB_OK);
    set(w, "llama.block_count", s->n_layer);
    set(w, "llama.context_length", s->n_ctx);
    set(w, "llama.embedding_length", s->d_model);
    set(w, "llama.feed_forward_length", s->d_ff);
    set(w, "llama.attention.head_count", s->n_head);
    set(w, "llama.attention.head_count_kv", s->n_kv_head);
    set(w, "llama.rope.dimension_count", s->d_model / s->n_head);
    set(w, "llama.vocab_size", s->n_vocab);
    if (s->n_expert > 0) {
        set(w, "llama.expert_count", s->n_expert);
        set(w, "llama.expert_used_count", s->n_used);
    }
    assert_int_equal(gguf_writer_set_float(w, "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5, NULL),
                     NIB_OK);
}

/* The tokens 0, 1, ... and t0, t1, ... and t, with merges of the latter. */
static void add_words(gguf_writer *w, int64_t n_vocab) {
    enum { TEXT = 16 };
    const int half = (int)n_vocab / 2;
    const size_t n = (size_t)n_vocab;
    char *text = mem_alloc(n * TEXT * 2);
    meta_string *all = mem_array(n, sizeof *all);
    int64_t *types = mem_array(n, sizeof *types);
    assert_true(text && all && types);
    for (int i = 0; i < 2 * half + 1; i++) {
        const char *before = i < half ? "" : "t";
        char *at = text + (size_t)i * TEXT;
        const int length =
            i == 2 * half ? snprintf(at, TEXT, "t") : snprintf(at, TEXT, "%s%d", before, i % half);
        all[i] = (meta_string){at, (size_t)length};
        types[i] = 1;
    }
    assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.model", "gpt2", 4, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "tokenizer.ggml.pre", "gpt-2", 5, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.tokens", all, n, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_ints(w, "tokenizer.ggml.token_type", GGUF_I32, types, n, NULL), NIB_OK);
    for (int i = 0; i < half; i++)
        all[i].n_byte = (size_t)snprintf(text + (size_t)i * TEXT, TEXT, "t %d", i);
    assert_int_equal(gguf_writer_set_strings(w, "tokenizer.ggml.merges", all, (size_t)half, NULL), NIB_OK);
    mem_free(text);
    mem_free(all);
    mem_free(types);
}

/* A tensor's values do not depend on the file that it is in. */
typedef struct part {
    int i, n; /* of the model's files */
    unsigned without;
    bool words;
} part;

static const char *write_part(const char *name, const tiny_shape *s, const part *p) {
    tensor list[MAX_TENSORS];
    tiny_shape said = *s;
    const char *path = temp_path(name);
    gguf_writer *w = NULL;
    int n = leave_out(list, list_tensors(s, list), p->without);
    said.n_layer -= __builtin_popcount(p->without);
    assert_int_equal(gguf_writer_open(path, &w, NULL), NIB_OK);
    if (p->i == 0)
        describe(w, &said);
    if (p->words)
        add_words(w, s->n_vocab);
    if (p->n > 1) {
        set(w, "split.no", p->i);
        set(w, "split.count", p->n);
        set(w, "split.tensors.count", n);
    }
    for (int i = p->i; i < n; i += p->n) {
        const int64_t dims[3] = {list[i].n_expert, list[i].n, list[i].k};
        const int n_dim = list[i].n_expert ? 3 : list[i].n ? 2 : 1;
        assert_int_equal(gguf_writer_tensor(w, list[i].name, list[i].type, n_dim, dims + 3 - n_dim, NULL),
                         NIB_OK);
    }
    for (int i = p->i; i < n; i += p->n) {
        uint64_t seed = list[i].seed;
        write_data(w, &list[i], &seed);
    }
    assert_int_equal(gguf_writer_commit(w, NULL), NIB_OK);
    return path;
}

const char *tiny_model(const char *name, const tiny_shape *s) {
    return write_part(name, s, &(part){.n = 1});
}

const char *tiny_model_without(const char *name, const tiny_shape *s, unsigned layers) {
    return write_part(name, s, &(part){.n = 1, .without = layers});
}

const char *tiny_model_with_words(const char *name, const tiny_shape *s) {
    return write_part(name, s, &(part){.n = 1, .words = true});
}

const char *tiny_model_split(const char *name, const tiny_shape *s, int n_file) {
    const char *path = NULL;
    for (int i = n_file - 1; i >= 0; i--) {
        char part_name[128];
        snprintf(part_name, sizeof part_name, "%s-%05d-of-%05d.gguf", name, i + 1, n_file);
        path = write_part(part_name, s, &(part){.i = i, .n = n_file});
    }
    return path;
}

/* Without a cap an engine plans for all weights and no margin; the runtime's part is the process's own
 * memory. Half of the weights must hold the ring too, so less than half stays resident. */
uint64_t tiny_model_half_bytes(const char *path) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    return tiny_model_half_bytes_with(path, &o);
}

uint64_t tiny_model_half_bytes_with(const char *path, const nib_engine_options *o) {
    nib_engine *e = NULL;
    nib_memory m;
    assert_int_equal(nib_engine_open(path, o, &e, NULL), NIB_OK);
    nib_engine_memory(e, &m);
    nib_engine_close(e);
    return LEDGER_RUNTIME_MARGIN + m.tier[NIB_TIER_VRAM].planned + m.tier[NIB_TIER_RAM].planned -
           m.owner[NIB_OWNER_RUNTIME] - m.owner[NIB_OWNER_WEIGHTS] / 2;
}
