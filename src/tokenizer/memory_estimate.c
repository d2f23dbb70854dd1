/* memory_estimate.c - see memory_estimate.h. A tokenizer.json is not parsed. The strings of its vocabulary
 * and its merges are counted, and the values of the rest. */
#include "tokenizer/memory_estimate.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "tokenizer/added.h"
#include "tokenizer/merges.h"
#include "tokenizer/state.h"
#include "tokenizer/unigram.h"
#include "tokenizer/vocab.h"

#include <string.h>

/* Bytes that do not depend on the vocabulary: regular expressions with their machine code, steps. */
#define FIXED (UINT64_C(256) << 10)

/* ---- GGUF ---- */

static void note_element(void *user, const char *key, meta_type elem, int64_t number) {
    vocabulary_sizes *s = user;
    (void)elem;
    if (!strcmp(key, "tokenizer.ggml.tokens")) {
        s->n_token++;
        s->n_text += (uint64_t)number;
        s->longest = NUM_MAX(s->longest, (uint64_t)number);
    } else if (!strcmp(key, "tokenizer.ggml.token_type")) {
        s->n_added += number == 2 || number == 3 || number == 4;
    } else if (!strcmp(key, "tokenizer.ggml.merges")) {
        s->n_merge++;
    } else if (!strcmp(key, "tokenizer.ggml.scores")) {
        s->n_score++;
    } else if (!strcmp(key, "tokenizer.ggml.precompiled_charsmap")) {
        s->n_charsmap++;
    }
}

container_visitor vocabulary_visitor(vocabulary_sizes *s) {
    return (container_visitor){note_element, s};
}

static tokenizer_need tables_of(const vocabulary_sizes *s, bool is_unigram) {
    const uint64_t added_text = NUM_MIN(s->n_added * s->longest, s->n_text);
    const uint64_t kept = FIXED + sizeof(tokenizer) + vocab_bytes(s->n_token, s->n_text) +
                          merges_bytes(s->n_merge) + added_bytes(s->n_added, added_text) + s->n_charsmap;
    const uint64_t scores = is_unigram ? unigram_bytes(s->n_score) : s->n_score * sizeof(float);
    const uint64_t max = is_unigram ? max_unigram_bytes(s->n_score) : scores;
    return (tokenizer_need){.kept = kept + scores, .peak = kept + max + s->n_charsmap};
}

static tokenizer_need need_of_gguf(const container *c, const vocabulary_sizes *s) {
    const char *model = container_meta_str(c, "tokenizer.ggml.model");
    tokenizer_need need = tables_of(s, model && !strcmp(model, "t5"));
    need.peak += container_left_out_bytes(c);
    return need;
}

/* ---- tokenizer.json ---- */

typedef enum region { REST, VOCAB, MERGES, N_REGION } region;

typedef struct json_count {
    uint64_t n_byte[N_REGION], n_string[N_REGION], n_text[N_REGION], n_list[N_REGION], n_object[N_REGION],
        n_place[N_REGION];
    uint64_t longest; /* bytes of the longest string */
    region where;
    int depth, region_depth;
    bool in_string, escaped, in_model;
    char last[8]; /* the beginning of the newest string, which may be a key */
    uint64_t n_last;
} json_count;

static bool last_is(const json_count *s, const char *word) {
    return s->n_last == strlen(word) && !memcmp(s->last, word, (size_t)s->n_last);
}

static void enter(json_count *s, bool object) {
    if (s->depth == 1)
        s->in_model = object && last_is(s, "model");
    if (s->where == REST && s->depth == 2 && s->in_model && (last_is(s, "vocab") || last_is(s, "merges"))) {
        s->where = last_is(s, "vocab") ? VOCAB : MERGES;
        s->region_depth = s->depth;
    }
    s->depth++;
    s->n_object[s->where] += object;
    s->n_list[s->where] += !object;
}

static void leave(json_count *s) {
    s->depth--;
    if (s->where != REST && s->depth == s->region_depth)
        s->where = REST;
}

static void in_string(json_count *s, char c) {
    if (!s->escaped && c == '"') {
        s->in_string = false;
        s->n_text[s->where] += s->n_last;
        s->longest = NUM_MAX(s->longest, s->n_last);
        return;
    }
    if (s->n_last < sizeof s->last)
        s->last[s->n_last] = c;
    s->n_last++;
    s->escaped = !s->escaped && c == '\\';
}

static void count_byte(json_count *s, char c) {
    s->n_byte[s->where]++;
    if (s->in_string) {
        in_string(s, c);
    } else if (c == '"') {
        s->in_string = true;
        s->n_last = 0;
        s->n_string[s->where]++;
    } else if (c == '{' || c == '[') {
        enter(s, c == '{');
    } else if (c == '}' || c == ']') {
        leave(s);
    } else if (c == ',' || c == ':') {
        s->n_place[s->where]++;
    }
}

/* Counts the file `name`, which may not exist. */
static nib_status count_file(const char *folder, const char *name, json_count *s, nib_error *err) {
    enum { PIECE = 64 << 10 };
    file *f = NULL;
    memset(s, 0, sizeof *s);
    char *path = path_join(folder, name), *piece = mem_alloc(PIECE);
    nib_status status = path && piece ? NIB_OK : nib_fail_nomem(err, PIECE, "a tokenizer's size");
    if (status == NIB_OK && path_exists(path))
        status = file_open(path, 0, &f, err);
    for (uint64_t at = 0; status == NIB_OK && f && at < file_size(f); at += PIECE) {
        const size_t n = (size_t)NUM_MIN((uint64_t)PIECE, file_size(f) - at);
        status = file_read_at(f, piece, at, n, err);
        for (size_t i = 0; status == NIB_OK && i < n; i++)
            count_byte(s, piece[i]);
    }
    file_close(f);
    mem_free(path);
    mem_free(piece);
    return status;
}

/* Bytes that jansson needs for the JSON outside the two large values, as jsonx.c estimates them, and the
 * text's copy in a doubling buffer. */
static uint64_t tree_bytes(const json_count *s) {
    return s->n_string[REST] * (JSONX_COST_STRING + 2) + s->n_text[REST] +
           s->n_object[REST] * JSONX_COST_OBJECT + s->n_list[REST] * JSONX_COST_ARRAY +
           s->n_place[REST] * (JSONX_COST_PLACE + JSONX_COST_NUMBER) + 3 * s->longest + 3 * s->n_byte[REST];
}

static uint64_t file_bytes(const json_count *s) {
    return s->n_byte[REST] + s->n_byte[VOCAB] + s->n_byte[MERGES] + FIXED / 16;
}

static nib_status need_of_json(const container *c, tokenizer_need *out, nib_error *err) {
    json_count json, config;
    NIB_TRY(count_file(container_path(c), "tokenizer.json", &json, err));
    NIB_TRY(count_file(container_path(c), "tokenizer_config.json", &config, err));
    if (!json.n_byte[REST])
        return NIB_OK;
    const bool pairs = json.n_list[MERGES] > 1; /* [["a", "b"], ...]: two strings each */
    const vocabulary_sizes s = {.n_token = json.n_string[VOCAB] + json.n_object[REST],
                                .n_text = json.n_text[VOCAB] + json.n_text[REST],
                                .longest = json.longest,
                                .n_added = json.n_object[REST],
                                .n_merge = json.n_string[MERGES] / (pairs ? 2 : 1),
                                .n_score = json.n_list[VOCAB]};
    *out = tables_of(&s, json.n_list[VOCAB] > 0);
    out->peak += file_bytes(&json) + file_bytes(&config) + tree_bytes(&json) + tree_bytes(&config);
    return NIB_OK;
}

/* ---- both ---- */

nib_status tokenizer_estimate(const container *c, const vocabulary_sizes *s, tokenizer_need *out,
                              nib_error *err) {
    *out = (tokenizer_need){0};
    if (container_get_kind(c) == CONTAINER_SAFETENSORS)
        return path_is_dir(container_path(c)) ? need_of_json(c, out, err) : NIB_OK;
    if (s->n_token)
        *out = need_of_gguf(c, s);
    return NIB_OK;
}
