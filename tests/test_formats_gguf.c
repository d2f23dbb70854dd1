/* GGUF headers: every value type; then headers that are wrong in each field, truncated at each byte, or read
 * with a failing allocation or read. */
#include "base/num.h"
#include "formats/container.h"
#include "formats/gguf.h"
#include "formats/gguf_write.h"
#include "formats/packed_matrix.h"
#include "numbers/encode.h"
#include "support/vocabulary.h"
#include "support/bytes.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/memfile.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A small valid file, and the offsets of its fields. */
typedef struct sample {
    bytes b;
    size_t version, n_tensor, n_key, key, key_type, second_key, string_length, array_type, array_n,
        array_string, bool_value, alignment;
    size_t name, n_dim, dim0, dim1, type, offset, second_name, second_offset;
    size_t data;
} sample;

static void put_key(bytes *b, const char *key, gguf_value type) {
    bytes_text(b, key);
    bytes_u32(b, type);
}

static void put_keys(sample *s) {
    bytes *b = &s->b;
    s->key = bytes_text(b, "general.architecture");
    s->key_type = bytes_u32(b, GGUF_STRING);
    s->string_length = bytes_text(b, "test");
    put_key(b, "t.u8", GGUF_U8), bytes_u8(b, 200);
    s->second_key = b->n;
    put_key(b, "t.i8", GGUF_I8), bytes_u8(b, 0x80);
    put_key(b, "t.u16", GGUF_U16), bytes_put(b, "\xff\xff", 2);
    put_key(b, "t.i16", GGUF_I16), bytes_put(b, "\xfe\xff", 2);
    put_key(b, "t.u32", GGUF_U32), bytes_u32(b, 4000000000u);
    put_key(b, "t.i32", GGUF_I32), bytes_u32(b, (uint32_t)-7);
    put_key(b, "t.f32", GGUF_F32), bytes_f32(b, 1.5f);
    put_key(b, "t.whole", GGUF_F32), bytes_f32(b, 42.0f);
    put_key(b, "t.bool", GGUF_BOOL), s->bool_value = bytes_u8(b, 1);
    put_key(b, "t.u64", GGUF_U64), bytes_u64(b, 1ull << 40);
    put_key(b, "t.huge", GGUF_U64), bytes_u64(b, UINT64_MAX);
    put_key(b, "t.i64", GGUF_I64), bytes_u64(b, (uint64_t)-1);
    put_key(b, "t.f64", GGUF_F64), bytes_put(b, &(double){0.1}, 8);
    put_key(b, "t.strings", GGUF_ARRAY);
    s->array_type = bytes_u32(b, GGUF_STRING);
    s->array_n = bytes_u64(b, 3);
    s->array_string = bytes_text(b, "one");
    bytes_text(b, "");
    bytes_u64(b, 3), bytes_put(b, "a\0b", 3);
    put_key(b, "t.ints", GGUF_ARRAY);
    bytes_u32(b, GGUF_I32), bytes_u64(b, 2), bytes_u32(b, 5), bytes_u32(b, (uint32_t)-5);
    put_key(b, "t.floats", GGUF_ARRAY);
    bytes_u32(b, GGUF_F32), bytes_u64(b, 2), bytes_f32(b, 0.5f), bytes_f32(b, -2);
    put_key(b, "t.bools", GGUF_ARRAY);
    bytes_u32(b, GGUF_BOOL), bytes_u64(b, 2), bytes_u8(b, 0), bytes_u8(b, 1);
    put_key(b, "t.mixed", GGUF_ARRAY); /* an unsigned number too large for int64_t makes floats of all */
    bytes_u32(b, GGUF_U64), bytes_u64(b, 2), bytes_u64(b, 3), bytes_u64(b, UINT64_MAX);
    put_key(b, "t.empty", GGUF_ARRAY);
    bytes_u32(b, GGUF_U8), bytes_u64(b, 0);
    put_key(b, "t.nested", GGUF_ARRAY); /* left out */
    bytes_u32(b, GGUF_ARRAY), bytes_u64(b, 2);
    bytes_u32(b, GGUF_U8), bytes_u64(b, 1), bytes_u8(b, 9);
    bytes_u32(b, GGUF_STRING), bytes_u64(b, 1), bytes_text(b, "x");
    put_key(b, "general.alignment", GGUF_U32), s->alignment = bytes_u32(b, 64);
}

enum { N_KEYS = 22 };

static void make_sample(sample *s) {
    memset(s, 0, sizeof *s);
    bytes *b = &s->b;
    bytes_put(b, GGUF_MAGIC, 4);
    s->version = bytes_u32(b, 3);
    s->n_tensor = bytes_u64(b, 2);
    s->n_key = bytes_u64(b, N_KEYS);
    put_keys(s);
    s->name = bytes_text(b, "a.weight");
    s->n_dim = bytes_u32(b, 2);
    s->dim0 = bytes_u64(b, 3);
    s->dim1 = bytes_u64(b, 2);
    s->type = bytes_u32(b, 0);
    s->offset = bytes_u64(b, 0);
    s->second_name = bytes_text(b, "b.weight");
    bytes_u32(b, 2), bytes_u64(b, 32), bytes_u64(b, 2);
    bytes_u32(b, 2);
    s->second_offset = bytes_u64(b, 64);
    bytes_align(b, 64);
    s->data = b->n;
    for (int i = 0; i < 64 + 36; i++)
        bytes_u8(b, (uint8_t)i);
}

static nib_status open_bytes(const bytes *b, container **c, nib_error *err) {
    static memfile memory;
    return container_open(memfile_set(&memory, b->data, b->n), NULL, c, err);
}

static int64_t int_of(const container *c, const char *key) {
    int64_t v = 0;
    if (!container_meta_i64(c, key, &v))
        fail_msg("%s is not there as an integer", key);
    return v;
}

static double float_of(const container *c, const char *key) {
    double v = 0;
    if (!container_meta_f64(c, key, &v))
        fail_msg("%s is not there as a number", key);
    return v;
}

static container *open_sample(sample *s) {
    container *c;
    nib_error err;
    make_sample(s);
    if (open_bytes(&s->b, &c, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return c;
}

static void test_scalars(void **state) {
    (void)state;
    sample s;
    container *c = open_sample(&s);
    bool flag = false;
    int64_t i;
    assert_int_equal(container_get_kind(c), CONTAINER_GGUF);
    assert_int_equal(container_n_meta(c), N_KEYS - 1);
    assert_string_equal(container_meta_str(c, "general.architecture"), "test");
    assert_int_equal(int_of(c, "t.u8"), 200);
    assert_int_equal(int_of(c, "t.i8"), -128);
    assert_int_equal(int_of(c, "t.u16"), 65535);
    assert_int_equal(int_of(c, "t.i16"), -2);
    assert_int_equal(int_of(c, "t.u32"), 4000000000);
    assert_int_equal(int_of(c, "t.i32"), -7);
    assert_int_equal(int_of(c, "t.i64"), -1);
    assert_int_equal(int_of(c, "t.u64"), 1ll << 40);
    assert_int_equal(int_of(c, "t.whole"), 42);
    assert_true(float_of(c, "t.f32") == 1.5 && float_of(c, "t.f64") == 0.1 && float_of(c, "t.u8") == 200);
    assert_true(float_of(c, "t.huge") == (double)UINT64_MAX);
    assert_true(container_meta_bool(c, "t.bool", &flag) && flag);
    assert_false(container_meta_i64(c, "t.huge", &i));
    assert_false(container_meta_i64(c, "t.f32", &i));
    assert_false(container_meta_i64(c, "t.bool", &i));
    assert_false(container_meta_bool(c, "t.u8", &flag));
    assert_null(container_meta_str(c, "t.u8"));
    assert_null(container_meta(c, "t.nothing"));
    assert_null(container_meta(c, "t.nested"));
    container_close(c);
}

static void test_arrays(void **state) {
    (void)state;
    sample s;
    container *c = open_sample(&s);
    const meta_value *v = container_meta(c, "t.strings");
    assert_true(v->type == META_ARRAY && v->elem == META_STRING && v->n == 3);
    assert_string_equal(v->v.strings[0].data, "one");
    assert_string_equal(v->v.strings[1].data, "");
    assert_int_equal(v->v.strings[2].n_byte, 3);
    assert_memory_equal(v->v.strings[2].data, "a\0b", 4);
    v = container_meta(c, "t.ints");
    assert_true(v->elem == META_INT && v->n == 2 && v->v.ints[0] == 5 && v->v.ints[1] == -5);
    v = container_meta(c, "t.floats");
    assert_true(v->elem == META_FLOAT && v->n == 2 && v->v.floats[0] == 0.5 && v->v.floats[1] == -2);
    v = container_meta(c, "t.bools");
    assert_true(v->elem == META_BOOL && v->n == 2 && v->v.ints[0] == 0 && v->v.ints[1] == 1);
    v = container_meta(c, "t.mixed");
    assert_true(v->elem == META_FLOAT && v->n == 2 && v->v.floats[0] == 3 &&
                v->v.floats[1] == (double)UINT64_MAX);
    v = container_meta(c, "t.empty");
    assert_true(v->type == META_ARRAY && v->n == 0);
    container_close(c);
}

static void test_tensors(void **state) {
    (void)state;
    sample s;
    container *c = open_sample(&s);
    assert_int_equal(container_n_tensor(c), 2);
    const container_tensor *t = container_find(c, "a.weight");
    assert_true(t && t == container_tensor_at(c, 0));
    assert_true(t->type == TYPE_F32 && t->n_dim == 2 && t->shape[0] == 2 && t->shape[1] == 3);
    assert_true(t->offset == s.data && t->bytes == 24 && t->file == 0);
    t = container_find(c, "b.weight");
    assert_true(t && t->type == TYPE_Q4_0 && t->shape[0] == 2 && t->shape[1] == 32);
    assert_true(t->offset == s.data + 64 && t->bytes == 36);
    assert_null(container_find(c, "c.weight"));
    assert_null(container_tensor_at(c, 2));
    uint8_t byte;
    assert_int_equal(file_read_at(container_file(c, t->file), &byte, t->offset, 1, NULL), NIB_OK);
    assert_int_equal(byte, 64);
    container_close(c);
}

/* The file with `n` bytes at `at` replaced must be refused, with these words and the file's name. */
static void refuse(const sample *s, size_t at, const void *lie, size_t n, const char *words) {
    bytes b = s->b;
    container *c = NULL;
    nib_error err = {0};
    memcpy(b.data + at, lie, n);
    const nib_status status = open_bytes(&b, &c, &err);
    if (status != NIB_E_MODEL)
        fail_msg("'%s': expected a refusal, found status %d %s", words, (int)status, err.message);
    if (!strstr(err.message, words) || !strstr(err.message, "/proc/self/fd/"))
        fail_msg("expected '%s' and the file's name in: %s", words, err.message);
}

static void refuse_u32(const sample *s, size_t at, uint32_t lie, const char *words) {
    refuse(s, at, &lie, sizeof lie, words);
}

static void refuse_u64(const sample *s, size_t at, uint64_t lie, const char *words) {
    refuse(s, at, &lie, sizeof lie, words);
}

static void test_lying_head(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    refuse(&s, 0, "GGML", 4, "expected 'GGUF'");
    refuse_u32(&s, s.version, 1, "version 2 or 3, found 1");
    refuse_u32(&s, s.version, 4, "version 2 or 3, found 4");
    refuse_u32(&s, s.version, 0x03000000, "big-endian");
    refuse_u64(&s, s.n_tensor, 1ull << 60, "tensors, more than");
    refuse_u64(&s, s.n_tensor, UINT64_MAX, "tensors, more than");
    refuse_u64(&s, s.n_tensor, 3, "");
    refuse_u64(&s, s.n_key, 1ull << 60, "metadata keys, more than");
    refuse_u64(&s, s.n_key, N_KEYS - 1, "");
    refuse_u64(&s, s.n_key, N_KEYS + 1, "");
}

static void test_lying_keys(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    refuse_u64(&s, s.key, UINT64_MAX, "a length of");
    refuse_u64(&s, s.key, 65000, "the file ends");
    refuse(&s, s.key + 8 + 3, "\0", 1, "NUL");
    refuse_u32(&s, s.key_type, 13, "value type 13");
    refuse_u64(&s, s.string_length, UINT64_MAX, "the file ends");
    refuse_u64(&s, s.string_length, 1ull << 62, "the file ends");
    refuse_u32(&s, s.array_type, 99, "value type 99");
    refuse_u64(&s, s.array_n, 1ull << 61, "more than the");
    refuse_u64(&s, s.array_n, UINT64_MAX, "more than the");
    refuse_u64(&s, s.array_string, 1ull << 40, "the file ends");
    refuse(&s, s.bool_value, "\2", 1, "expected 0 or 1");
    refuse(&s, s.second_key + 8, "t.u8", 4, "twice");
    refuse_u32(&s, s.alignment, 0, "power of two");
    refuse_u32(&s, s.alignment, 48, "power of two");
    refuse_u32(&s, s.alignment, 1u << 31, "power of two");
    refuse_u32(&s, s.alignment, 128, "multiple of 128");
}

static void test_lying_tensors(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    refuse_u64(&s, s.name, UINT64_MAX, "a length of");
    refuse_u64(&s, s.name, 0, "");
    refuse(&s, s.name + 8, "\0", 1, "NUL");
    refuse(&s, s.second_name + 8, "a", 1, "twice");
    refuse_u32(&s, s.n_dim, 9, "9 dimensions");
    refuse_u32(&s, s.n_dim, UINT32_MAX, "dimensions");
    refuse_u64(&s, s.dim0, UINT64_MAX, "dimension 0");
    refuse_u64(&s, s.dim0, 1ull << 62, "shape");
    refuse_u64(&s, s.dim1, 1ull << 62, "shape");
    refuse_u64(&s, s.dim1, 1ull << 40, "needs");
    refuse_u64(&s, s.dim1, 30, "needs");
    refuse_u64(&s, s.dim1, 8, "overlap");
    refuse_u32(&s, s.type, 2, "shape"); /* rows of 3 cannot be blocks of 32 */
    refuse_u32(&s, s.type, 4, "type number 4");
    refuse_u32(&s, s.type, 16, "iq2_xxs");
    refuse_u32(&s, s.type, UINT32_MAX, "type number");
    refuse_u64(&s, s.offset, 1, "multiple of 64");
    refuse_u64(&s, s.offset, 64, "overlap");
    refuse_u64(&s, s.second_offset, 128, "needs");
    refuse_u64(&s, s.second_offset, UINT64_MAX - 63, "needs");
    refuse_u64(&s, s.second_offset, 1ull << 63, "needs");
}

static void test_truncated(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    const size_t whole = s.b.n;
    for (size_t n = 0; n < whole; n++) {
        container *c = NULL;
        nib_error err = {0};
        s.b.n = n;
        const nib_status status = open_bytes(&s.b, &c, &err);
        if (status != NIB_E_MODEL || !strstr(err.message, "/proc/self/fd/"))
            fail_msg("cut after %zu of %zu bytes: status %d, %s", n, whole, (int)status, err.message);
    }
}

/* Any single byte changed: opened or refused, nothing else. */
static void test_damaged(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    for (size_t i = 0; i < s.data; i++) {
        const uint8_t lies[] = {0x00, 0xff, 0x80, (uint8_t)(s.b.data[i] ^ 1)};
        for (size_t k = 0; k < NUM_COUNT(lies); k++) {
            bytes b = s.b;
            container *c = NULL;
            nib_error err = {0};
            b.data[i] = lies[k];
            const nib_status status = open_bytes(&b, &c, &err);
            assert_true(status == NIB_OK || (status == NIB_E_MODEL && err.message[0]));
            if (status == NIB_OK)
                container_close(c);
        }
    }
}

static nib_status open_and_close(void *path, nib_error *err) {
    container *c;
    NIB_TRY(container_open(path, NULL, &c, err));
    made_container(c);
    container_drop_vocab(c);
    container_close(c);
    return NIB_OK;
}

static void test_faults(void **state) {
    (void)state;
    sample s;
    make_sample(&s);
    char path[512];
    snprintf(path, sizeof path, "%s", temp_file("sample.gguf", s.b.data, s.b.n));
    assert_true(fault_sweep(FAULT_ALLOC, 1, open_and_close, path) > 10);
    assert_true(fault_sweep(FAULT_READ, 1, open_and_close, path) >= 1);
    char vocabulary[1024];
    snprintf(vocabulary, sizeof vocabulary, "%s", vocabulary_path("llama-spm"));
    assert_true(fault_sweep(FAULT_ALLOC, 1, open_and_close, vocabulary) > 10);
    assert_true(fault_sweep(FAULT_READ, 1, open_and_close, vocabulary) >= 2);
}

/* Files that are no models, and an endless header in a file that has the bytes (a sparse one). */
static void test_not_a_header(void **state) {
    (void)state;
    sample s;
    container *c = NULL;
    nib_error err = {0};
    make_sample(&s);
    refuse(&s, 0, "version https://git-lfs", 23, "Git LFS");
    const uint64_t huge = 100u << 20;
    memcpy(s.b.data + s.string_length, &huge, 8);
    char path[512];
    snprintf(path, sizeof path, "%s", temp_file("sparse.gguf", s.b.data, s.b.n));
    assert_int_equal(truncate(path, 1 << 30), 0);
    assert_int_equal(container_open(path, NULL, &c, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "more than a header may have"));
}

static void test_missing(void **state) {
    (void)state;
    container *c = NULL;
    nib_error err;
    assert_int_equal(container_open(temp_path("nothing.gguf"), NULL, &c, &err), NIB_E_NOTFOUND);
    assert_non_null(strstr(err.message, "nothing.gguf"));
}

static const struct {
    const char *name;
    size_t n_token;
    const char *first_merge; /* NULL: no merges */
} vocabularies[] = {
    {"deepseek-llm", 102400, "\xc4\xa0 \xc4\xa0"},
    {"falcon", 65024, "\xc4\xa0 t"},
    {"gpt-2", 50257, "\xc4\xa0 t"},
    {"llama-spm", 32000, NULL},
    {"phi-3", 32064, NULL},
};

/* Real vocabularies: large arrays are available, and freed when they are dropped. */
static void test_vocabularies(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_COUNT(vocabularies); i++) {
        container *c;
        nib_error err;
        if (container_open(vocabulary_path(vocabularies[i].name), NULL, &c, &err) != NIB_OK)
            fail_msg("%s", err.message);
        const meta_value *tokens = container_meta(c, "tokenizer.ggml.tokens");
        const meta_value *types = container_meta(c, "tokenizer.ggml.token_type");
        const meta_value *merges = container_meta(c, "tokenizer.ggml.merges");
        assert_true(tokens && tokens->elem == META_STRING && tokens->n == vocabularies[i].n_token);
        assert_true(types && types->elem == META_INT && types->n == tokens->n);
        for (size_t k = 0; k < tokens->n; k++)
            assert_int_equal(strlen(tokens->v.strings[k].data), tokens->v.strings[k].n_byte);
        assert_true(!merges == !vocabularies[i].first_merge);
        if (merges)
            assert_string_equal(merges->v.strings[0].data, vocabularies[i].first_merge);
        const uint64_t before = container_heap_bytes(c);
        container_drop_vocab(c);
        assert_null(container_meta(c, "tokenizer.ggml.tokens"));
        assert_null(container_meta(c, "tokenizer.ggml.merges"));
        assert_non_null(container_meta_str(c, "tokenizer.ggml.model"));
        assert_true(before > 1000000 && container_heap_bytes(c) < 50000);
        container_drop_vocab(c);
        container_close(c);
    }
}

/* ---- latent attention in the absorbed form ---- */

enum { HEADS = 2, LOW = 32, PLAIN = 64, VALUES = 3 };

/* Keys in Q8_0, with a scale of 1, and values in F32. */
static nib_status open_absorbed(int n_value_head, container **c, nib_error *err) {
    const char *path = temp_path("absorbed.gguf");
    const int64_t k[] = {HEADS, LOW, PLAIN}, v[] = {n_value_head, VALUES, LOW};
    float x[PLAIN];
    uint8_t row[PLAIN / 32 * 34];
    gguf_writer *w;
    assert_int_equal(gguf_writer_open(path, &w, NULL), NIB_OK);
    assert_int_equal(gguf_writer_set_string(w, "general.architecture", "deepseek2", 9, NULL), NIB_OK);
    assert_int_equal(gguf_writer_tensor(w, "blk.0.attn_k_b.weight", TYPE_Q8_0, 3, k, NULL), NIB_OK);
    assert_int_equal(gguf_writer_tensor(w, "blk.0.attn_v_b.weight", TYPE_F32, 3, v, NULL), NIB_OK);
    for (int i = 0; i < HEADS * LOW; i++) {
        for (int j = 0; j < PLAIN; j++)
            x[j] = j % 32 == 31 ? 127 : (float)(i % LOW + j % 32 - 32 * (i / LOW));
        encode_row(TYPE_Q8_0, x, NULL, PLAIN, row);
        assert_int_equal(gguf_writer_data(w, row, sizeof row, NULL), NIB_OK);
    }
    for (int i = 0; i < n_value_head * VALUES; i++) {
        for (int j = 0; j < LOW; j++)
            x[j] = (float)(1000 + 100 * i + j);
        assert_int_equal(gguf_writer_data(w, x, LOW * sizeof *x, NULL), NIB_OK);
    }
    assert_int_equal(gguf_writer_commit(w, NULL), NIB_OK);
    return container_open(path, NULL, c, err);
}

static void test_absorbed(void **state) {
    (void)state;
    container *c;
    nib_error err = {0};
    float rows[PLAIN + VALUES][LOW];
    assert_int_equal(open_absorbed(HEADS, &c, &err), NIB_OK);
    const container_tensor *t = container_find(c, "blk.0.attn_kv_b.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], HEADS * (PLAIN + VALUES));
    assert_int_equal(t->shape[1], LOW);
    assert_true(container_find(c, "blk.0.attn_k_b.weight")->source);
    /* from the middle of the first head's keys to the middle of the second's */
    assert_int_equal(packed_read(c, t, 40, PLAIN + VALUES, TYPE_F32, rows, &err), NIB_OK);
    for (int i = 0; i < PLAIN + VALUES; i++) {
        const int head = (40 + i) / (PLAIN + VALUES), at = (40 + i) % (PLAIN + VALUES);
        for (int j = 0; j < LOW; j++) {
            const int key = at % 32 == 31 ? 127 : j + at % 32 - 32 * head;
            const int value = 1000 + 100 * (head * VALUES + at - PLAIN) + j;
            assert_int_equal((int)rows[i][j], at < PLAIN ? key : value);
        }
    }
    container_close(c);
    assert_int_equal(open_absorbed(HEADS + 1, &c, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "attn_k_b [heads, low, plain]"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absorbed),      cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_arrays),        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_lying_head),    cmocka_unit_test(test_lying_keys),
        cmocka_unit_test(test_lying_tensors), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),       cmocka_unit_test(test_faults),
        cmocka_unit_test(test_missing),       cmocka_unit_test(test_not_a_header),
        cmocka_unit_test(test_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
