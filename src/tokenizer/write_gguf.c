/* write_gguf.c - see write_gguf.h. */
#include "tokenizer/write_gguf.h"

#include "base/mem.h"
#include "base/num.h"
#include "tokenizer/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define KEY(name) "tokenizer.ggml." name

/* ---- the pre-tokenizer's name ---- */

/* A text on which vocabularies differ: contractions in both cases, numbers of every length, marks,
 * punctuation before letters, several scripts, runs of white space and line ends. After COMMON bytes it has
 * cases for which names are less exact than some vocabularies (Falcon's signs). */
static const char sample[] =
    "Hello world, it's I'M we'Ll 1 12 123 1234567890 3.14 a1b22\n\n\n  two   spaces\t\ttabs \r\nline \n \n"
    "don't!!! (what?) foo_bar; // #tag @user 50% .Net :word \"quoted\" [a]{b}\n"
    "\xC3\x89t\xC3\xA9 na\xC3\xAFve e\xCC\x81 \xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C"
    "\xE3\x80\x82 \xE3\x81\x93\xE3\x82\x93\xE3\x81\xAB\xE3\x81\xA1\xE3\x81\xAF \xED\x95\x9C\xEA\xB5\xAD "
    "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7 "
    "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87 "
    "\xF0\x9F\x98\x80\xF0\x9F\x91\x8D "
    "CamelCaseWORDS HTMLParser iPhone O'Neill rock'n'roll \xC2\xBD \xC2\xB2 \xD9\xA3\xD9\xA4\xD9\xA5\xD9\xA6 "
    "\xE2\x85\xA7 \xC2\xA0nbsp\xE2\x80\xA6\xE2\x80\x94 end   a==b+=1 x->y c++ $5 ^~`|<=>";
enum { COMMON = sizeof sample - 1 - 27 };

typedef struct cutting {
    uint64_t hash;
    size_t n;
} cutting;

static nib_status take(void *user, const char *piece, size_t n_byte, nib_error *err) {
    cutting *c = user;
    (void)err;
    c->hash = XXH3_64bits_withSeed(piece, n_byte, c->hash + n_byte);
    c->n++;
    return NIB_OK;
}

static nib_status cut(const splitter *z, size_t n_byte, cutting *out, nib_error *err) {
    text_work work = work_of(n_byte);
    split_scratch s;
    *out = (cutting){0};
    split_scratch_init(&s, &work);
    const nib_status status = splitter_run(z, &s, sample, n_byte, false, take, out, err);
    split_scratch_deinit(&s);
    return status;
}

/* whole: the name's vocabularies encode a piece that is a token as that token (read_gguf.c). */
static const struct {
    const char *name;
    bool whole;
} names[] = {{"llama-bpe", true},       {"smaug-bpe", false},   {"gpt-2", false},
             {"qwen2", false},          {"smollm", false},      {"tekken", true},
             {"gpt-4o", false},         {"falcon", false},      {"deepseek-llm", false},
             {"deepseek-coder", false}, {"deepseek-v3", false}, {"qwen35", false},
             {"bloom", false},          {"viking", false},      {"superbpe", false},
             {"bailingmoe", false},     {"seed-coder", false},  {"default", false}};

/* Finds the first name that cuts n_byte bytes of the sample in the same way; *name NULL: none. */
static nib_status find_alike(const tokenizer *t, size_t n_byte, const char **name, nib_error *err) {
    cutting wanted, found;
    NIB_TRY(cut(&t->splitter, n_byte, &wanted, err));
    for (size_t i = 0; i < NUM_COUNT(names) && !*name; i++) {
        splitter z = {.n_step = 0};
        bool known;
        if (names[i].whole != t->merges.whole_first)
            continue;
        nib_status status = splitter_add_named(&z, names[i].name, &known, err);
        if (status == NIB_OK)
            status = cut(&z, n_byte, &found, err);
        splitter_deinit(&z);
        NIB_TRY(status);
        if (found.hash == wanted.hash && found.n == wanted.n)
            *name = names[i].name;
    }
    return NIB_OK;
}

static nib_status find_name(const tokenizer *t, const char **name, nib_error *err) {
    *name = NULL;
    NIB_TRY(find_alike(t, sizeof sample - 1, name, err));
    if (!*name)
        NIB_TRY(find_alike(t, COMMON, name, err));
    if (*name)
        return NIB_OK;
    return nib_fail(
        err, NIB_E_MODEL,
        "expected a pre-tokenizer that GGUF has a name for, found one that cuts texts differently");
}

/* ---- tokens ---- */

static int64_t type_of(const tokenizer *t, int32_t id) {
    const uint8_t flags = t->vocab.flags[id];
    size_t n;
    const char *text = vocab_text(&t->vocab, id, &n);
    if (!text)
        return 5;
    if (id == t->unk && !(flags & VOCAB_ADDED && t->merges.kind == MERGES_BYTES))
        return 2;
    if (flags & VOCAB_CONTROL)
        return 3;
    if (flags & VOCAB_ADDED)
        return 4;
    return t->merges.kind != MERGES_BYTES && vocab_byte_value(text, n) >= 0 ? 6 : 1;
}

/* The arrays for n tokens, with texts for missing ids. */
typedef struct tokens {
    meta_string *text;
    int64_t *type;
    char (*pad)[16];
    double *score;
} tokens;

static void tokens_clear(tokens *v) {
    mem_free(v->text);
    mem_free(v->type);
    mem_free(v->pad);
    mem_free(v->score);
}

static nib_status fill_tokens(const tokenizer *t, int64_t n, tokens *v, nib_error *err) {
    v->text = mem_calloc((size_t)n, sizeof *v->text);
    v->type = mem_calloc((size_t)n, sizeof *v->type);
    v->pad = mem_calloc((size_t)n, sizeof *v->pad);
    v->score = mem_calloc((size_t)n, sizeof *v->score);
    if (!v->text || !v->type || !v->pad || !v->score)
        return nib_fail_nomem(err, (size_t)n * 48, "a vocabulary");
    for (int64_t i = 0; i < n; i++) {
        size_t n_byte = 0;
        const char *text = i < t->vocab.n ? vocab_text(&t->vocab, (int32_t)i, &n_byte) : NULL;
        v->type[i] = i < t->vocab.n ? type_of(t, (int32_t)i) : 5;
        if (!text) {
            n_byte = (size_t)snprintf(v->pad[i], sizeof v->pad[i], "[PAD%lld]", (long long)i);
            text = v->pad[i];
        }
        v->text[i] = (meta_string){text, n_byte};
    }
    return NIB_OK;
}

static nib_status write_tokens(const tokens *v, int64_t n, bool scores, gguf_writer *w, nib_error *err) {
    NIB_TRY(gguf_writer_set_strings(w, KEY("tokens"), v->text, (size_t)n, err));
    if (scores)
        NIB_TRY(gguf_writer_set_floats(w, KEY("scores"), GGUF_F32, v->score, (size_t)n, err));
    return gguf_writer_set_ints(w, KEY("token_type"), GGUF_I32, v->type, (size_t)n, err);
}

/* ---- merges ---- */

static int by_rank(const void *a, const void *b) {
    const merge_pair *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Returns all pairs, sorted by rank; caller frees. */
static nib_status sort_merges(const merges *m, merge_pair **out, size_t *n, nib_error *err) {
    *n = 0;
    *out = mem_array(NUM_MAX(m->n_slot, 1u), sizeof **out);
    if (!*out)
        return nib_fail_nomem(err, m->n_slot * sizeof **out, "a list of merges");
    for (uint32_t i = 0; i < m->n_slot; i++)
        if (m->pair[i].left != MERGE_FREE)
            (*out)[(*n)++] = m->pair[i];
    qsort(*out, *n, sizeof **out, by_rank);
    return NIB_OK;
}

/* Writes each merge as "left right", from one allocation. */
static nib_status write_merges(const tokenizer *t, gguf_writer *w, nib_error *err) {
    merge_pair *pairs = NULL;
    meta_string *text = NULL;
    char *blob = NULL;
    size_t n = 0, bytes = 0, n_left, n_right;
    nib_status status = sort_merges(&t->merges, &pairs, &n, err);
    for (size_t i = 0; i < n && status == NIB_OK; i++) {
        vocab_text(&t->vocab, (int32_t)pairs[i].left, &n_left);
        vocab_text(&t->vocab, (int32_t)pairs[i].right, &n_right);
        bytes += n_left + n_right + 1;
    }
    if (status == NIB_OK) {
        text = mem_array(NUM_MAX(n, (size_t)1), sizeof *text);
        blob = mem_alloc(NUM_MAX(bytes, (size_t)1));
        if (!text || !blob)
            status = nib_fail_nomem(err, bytes, "a list of merges");
    }
    bytes = 0;
    for (size_t i = 0; i < n && status == NIB_OK; i++) {
        const char *left = vocab_text(&t->vocab, (int32_t)pairs[i].left, &n_left);
        const char *right = vocab_text(&t->vocab, (int32_t)pairs[i].right, &n_right);
        text[i] = (meta_string){blob + bytes, n_left + n_right + 1};
        memcpy(blob + bytes, left, n_left);
        blob[bytes + n_left] = ' ';
        memcpy(blob + bytes + n_left + 1, right, n_right);
        bytes += text[i].n_byte;
    }
    if (status == NIB_OK)
        status = gguf_writer_set_strings(w, KEY("merges"), text, n, err);
    mem_free(pairs);
    mem_free(text);
    mem_free(blob);
    return status;
}

/* SentencePiece joins pairs by the score of the result, so earlier merges get higher scores. */
static nib_status fill_scores(const tokenizer *t, tokens *v, int64_t n_vocab, nib_error *err) {
    merge_pair *pairs = NULL;
    size_t n = 0;
    NIB_TRY(sort_merges(&t->merges, &pairs, &n, err));
    for (int64_t i = 0; i < n_vocab; i++)
        v->score[i] = -(double)n - 1; /* tokens that no merge produces */
    for (size_t i = n; i-- > 0;)
        if (pairs[i].joined < (uint64_t)n_vocab)
            v->score[pairs[i].joined] = -(double)i;
    mem_free(pairs);
    return NIB_OK;
}

/* ---- special tokens ---- */

static nib_status set_id(gguf_writer *w, const char *key, int32_t id, nib_error *err) {
    return id < 0 ? NIB_OK : gguf_writer_set_int(w, key, GGUF_U32, id, err);
}

static nib_status write_specials(const tokenizer *t, int32_t n, gguf_writer *w, nib_error *err) {
    const char *const more[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    size_t n_more = 0;
    const bool bos = t->n_prefix > 0 && t->prefix[0] == t->bos, eos = t->n_suffix > 0;
    if (t->n_prefix > 1 || t->n_suffix > 1 || (t->n_prefix && !bos) || (eos && t->suffix[0] != t->eos))
        return nib_fail(
            err, NIB_E_MODEL,
            "the tokenizer adds more than BOS and EOS to a text, which a GGUF file cannot express");
    NIB_TRY(set_id(w, KEY("bos_token_id"), t->bos, err));
    NIB_TRY(set_id(w, KEY("eos_token_id"), t->eos, err));
    NIB_TRY(set_id(w, KEY("unknown_token_id"), t->unk, err));
    for (int32_t i = 0; i < n && n_more < NUM_COUNT(more); i++)
        if (i != t->eos && tokenizer_is_end(t, i))
            NIB_TRY(set_id(w, more[n_more++], i, err));
    NIB_TRY(gguf_writer_set_int(w, KEY("add_bos_token"), GGUF_BOOL, bos, err));
    return gguf_writer_set_int(w, KEY("add_eos_token"), GGUF_BOOL, eos, err);
}

static bool begins_with_space(const tokenizer *t) {
    for (size_t i = 0; i < t->normalizer.n_step; i++)
        if (t->normalizer.step[i].kind == NORMAL_PREPEND)
            return true;
    for (size_t i = 0; i < t->splitter.n_step; i++)
        if (t->splitter.step[i].kind == SPLIT_METASPACE && t->splitter.step[i].prepend != PREPEND_NEVER)
            return true;
    return false;
}

/* ---- all of it ---- */

static nib_status write_bytes(const tokenizer *t, const tokens *v, int64_t n, gguf_writer *w,
                              nib_error *err) {
    const char *pre;
    NIB_TRY(find_name(t, &pre, err));
    NIB_TRY(gguf_writer_set_string(w, KEY("model"), "gpt2", 4, err));
    NIB_TRY(gguf_writer_set_string(w, KEY("pre"), pre, strlen(pre), err));
    NIB_TRY(write_tokens(v, n, false, w, err));
    return write_merges(t, w, err);
}

static nib_status write_chars(const tokenizer *t, tokens *v, int64_t n, gguf_writer *w, nib_error *err) {
    if (!t->merges.byte_fallback)
        return nib_fail(
            err, NIB_E_MODEL,
            "the tokenizer is BPE over characters without byte fallback, which a GGUF file cannot express");
    NIB_TRY(gguf_writer_set_string(w, KEY("model"), "llama", 5, err));
    NIB_TRY(gguf_writer_set_string(w, KEY("pre"), "default", 7, err));
    NIB_TRY(gguf_writer_set_int(w, KEY("add_space_prefix"), GGUF_BOOL, begins_with_space(t), err));
    NIB_TRY(fill_scores(t, v, n, err));
    return write_tokens(v, n, true, w, err);
}

nib_status tokenizer_write_gguf(const tokenizer *t, int64_t n_vocab, gguf_writer *w, nib_error *err) {
    tokens v = {0};
    if (t->model != MODEL_MERGES || t->merges.kind == MERGES_SCORES)
        return nib_fail(err, NIB_E_MODEL, "writing a Unigram tokenizer to a GGUF file is not supported");
    nib_status status = fill_tokens(t, n_vocab, &v, err);
    if (status == NIB_OK)
        status = t->merges.kind == MERGES_BYTES ? write_bytes(t, &v, n_vocab, w, err)
                                                : write_chars(t, &v, n_vocab, w, err);
    if (status == NIB_OK)
        status = write_specials(t, (int32_t)NUM_MIN(n_vocab, (int64_t)t->vocab.n), w, err);
    tokens_clear(&v);
    return status;
}

nib_status tokenizer_check_same(const tokenizer *a, const tokenizer *b, bool *same, nib_error *err) {
    token_list x = {0}, y = {0};
    nib_status status = tokenizer_encode(a, sample, sizeof sample - 1, TOKENIZE_BOS, &x, err);
    if (status == NIB_OK)
        status = tokenizer_encode(b, sample, sizeof sample - 1, TOKENIZE_BOS, &y, err);
    *same = status == NIB_OK && x.n == y.n && (x.n == 0 || !memcmp(x.data, y.data, x.n * sizeof *x.data));
    token_list_clear(&x);
    token_list_clear(&y);
    return status;
}
