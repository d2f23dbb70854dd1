/* read_json_model.c - reads the "model" section: BPE or Unigram, its vocabulary and merges. */
#include "tokenizer/read_json.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

/* ---- BPE's vocabulary: {"token": id, ...} ---- */

typedef struct vocab_size {
    int64_t highest;
    size_t n_byte;
} vocab_size;

/* Reads the vocabulary: into the table with `fill`, otherwise only its size. */
static nib_status walk_bpe_vocab(json_reading *r, bool fill, vocab_size *size) {
    json_text j = r->vocab;
    text_buffer token = {0};
    bool first = true, more = false;
    nib_status status = json_text_expect(&j, '{', r->err);
    while (status == NIB_OK && (status = json_text_next(&j, '}', &first, &more, r->err)) == NIB_OK && more) {
        double id = -1;
        status = json_text_string(&j, &token, r->err);
        if (status == NIB_OK)
            status = json_text_expect(&j, ':', r->err);
        if (status == NIB_OK)
            status = json_text_number(&j, &id, r->err);
        if (status == NIB_OK && !(id >= 0 && id < MAX_VOCAB && id == floor(id)))
            status =
                nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: vocab: expected ids from 0 to %d, found %s",
                         MAX_VOCAB - 1, num_text(id, 6));
        if (status != NIB_OK)
            break;
        size->highest = id > (double)size->highest ? (int64_t)id : size->highest;
        size->n_byte += token.n;
        if (!fill)
            continue;
        if (vocab_find(&r->t->vocab, token.data, token.n) >= 0)
            status =
                nib_fail(r->err, NIB_E_MODEL,
                         "tokenizer.json: vocab: expected each token once, found '%.80s' twice", token.data);
        else
            status = vocab_set(&r->t->vocab, (int32_t)id, token.data, token.n, r->err);
    }
    text_buffer_clear(&token);
    return status;
}

/* The highest id, including added tokens, which may follow the vocabulary. */
static int64_t highest_added(const json_reading *r, int64_t highest) {
    size_t i;
    json_t *token;
    json_array_foreach(json_object_get(r->root, "added_tokens"), i, token) {
        int64_t id = (int64_t)json_integer_value(json_object_get(token, "id"));
        highest = id > highest && id < MAX_VOCAB ? id : highest;
    }
    return highest;
}

/* ---- merges: ["a b", ...] or [["a", "b"], ...] ---- */

static nib_status read_pair(json_reading *r, json_text *j, text_buffer *left, text_buffer *right) {
    if (json_text_peek(j) == '[') {
        NIB_TRY(json_text_expect(j, '[', r->err));
        NIB_TRY(json_text_string(j, left, r->err));
        NIB_TRY(json_text_expect(j, ',', r->err));
        NIB_TRY(json_text_string(j, right, r->err));
        return json_text_expect(j, ']', r->err);
    }
    NIB_TRY(json_text_string(j, left, r->err));
    char *space = left->n ? memchr(left->data, ' ', left->n) : NULL;
    if (!space || memchr(space + 1, ' ', left->n - (size_t)(space + 1 - left->data)))
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: merges: expected two tokens with a space between, found "
                        "'%.80s'",
                        left->data);
    right->n = 0;
    NIB_TRY(text_append(right, space + 1, left->n - (size_t)(space + 1 - left->data), r->err));
    left->n = (size_t)(space - left->data);
    return NIB_OK;
}

static nib_status put_pair(json_reading *r, text_buffer *left, const text_buffer *right, uint32_t rank) {
    const vocab *v = &r->t->vocab;
    int32_t a = vocab_find(v, left->data, left->n), b = vocab_find(v, right->data, right->n);
    NIB_TRY(text_append(left, right->data, right->n, r->err));
    int32_t both = vocab_find(v, left->data, left->n);
    if (a < 0 || b < 0 || both < 0)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: merge %u: expected '%.80s' and its two parts to be tokens", rank,
                        left->data);
    merges_put(&r->t->merges, (uint32_t)a, (uint32_t)b, rank, (uint32_t)both);
    return NIB_OK;
}

static nib_status count_merges(json_reading *r, size_t *n) {
    json_text j = r->merges;
    bool first = true, more = false;
    NIB_TRY(json_text_expect(&j, '[', r->err));
    for (*n = 0;; ++*n) {
        NIB_TRY(json_text_next(&j, ']', &first, &more, r->err));
        if (!more)
            return NIB_OK;
        NIB_TRY(json_text_skip(&j, r->err));
    }
}

static nib_status read_merges(json_reading *r) {
    text_buffer left = {0}, right = {0};
    json_text j = r->merges;
    bool first = true, more = false;
    size_t n;
    if (!j.begin)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: model: expected merges, found none");
    NIB_TRY(count_merges(r, &n));
    NIB_TRY(merges_init_pairs(&r->t->merges, n, r->err));
    nib_status status = json_text_expect(&j, '[', r->err);
    for (uint32_t rank = 0; status == NIB_OK; rank++) {
        status = json_text_next(&j, ']', &first, &more, r->err);
        if (status != NIB_OK || !more)
            break;
        status = read_pair(r, &j, &left, &right);
        if (status == NIB_OK)
            status = put_pair(r, &left, &right, rank);
    }
    text_buffer_clear(&left);
    text_buffer_clear(&right);
    return status;
}

static void find_bytes(const vocab *v, bool byte_level, int32_t byte_id[256]) {
    static const char hex[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; b++) {
        char text[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
        size_t n = byte_level ? utf8_put(byte_to_char((unsigned char)b), text) : 6;
        byte_id[b] = vocab_find(v, text, n);
    }
}

static nib_status refuse_text(json_reading *r, const json_t *model, const char *key) {
    const char *text = NULL;
    NIB_TRY(jsonx_get_string(model, key, false, &text, r->err));
    return text && *text ? nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: unknown %s '%.80s'", key, text)
                         : NIB_OK;
}

static nib_status read_bpe(json_reading *r, const json_t *model) {
    merges *m = &r->t->merges;
    vocab_size size = {-1, 0};
    const char *unk = NULL;
    double dropout = 0;
    NIB_TRY(refuse_text(r, model, "continuing_subword_prefix"));
    NIB_TRY(refuse_text(r, model, "end_of_word_suffix"));
    NIB_TRY(jsonx_get_f64(model, "dropout", false, &dropout, r->err));
    if (dropout > 0)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: expected no dropout, found %s, which would make ids random",
                        num_text(dropout, 6));
    NIB_TRY(walk_bpe_vocab(r, false, &size));
    NIB_TRY(vocab_init(&r->t->vocab, highest_added(r, size.highest) + 1, size.n_byte, r->err));
    NIB_TRY(walk_bpe_vocab(r, true, &size));
    r->t->vocab.n_model = (int32_t)size.highest + 1;
    NIB_TRY(read_merges(r));
    m->kind = r->byte_level ? MERGES_BYTES : MERGES_CHARS;
    NIB_TRY(jsonx_get_bool(model, "byte_fallback", false, &m->byte_fallback, r->err));
    NIB_TRY(jsonx_get_bool(model, "fuse_unk", false, &m->fuse_unk, r->err));
    NIB_TRY(jsonx_get_bool(model, "ignore_merges", false, &m->whole_first, r->err));
    NIB_TRY(jsonx_get_string(model, "unk_token", false, &unk, r->err));
    m->unk = unk ? vocab_find(&r->t->vocab, unk, strlen(unk)) : -1;
    find_bytes(&r->t->vocab, r->byte_level, m->byte_id);
    return json_read_added(r);
}

/* ---- Unigram's vocabulary: [["token", score], ...], the id is the place ---- */

static nib_status walk_unigram_vocab(json_reading *r, bool fill, vocab_size *size) {
    json_text j = r->vocab;
    text_buffer token = {0};
    bool first = true, more = false;
    int64_t id = 0;
    nib_status status = json_text_expect(&j, '[', r->err);
    while (status == NIB_OK && (status = json_text_next(&j, ']', &first, &more, r->err)) == NIB_OK && more) {
        double score = 0;
        status = json_text_expect(&j, '[', r->err);
        if (status == NIB_OK)
            status = json_text_string(&j, &token, r->err);
        if (status == NIB_OK)
            status = json_text_expect(&j, ',', r->err);
        if (status == NIB_OK)
            status = json_text_number(&j, &score, r->err);
        if (status == NIB_OK)
            status = json_text_expect(&j, ']', r->err);
        if (status == NIB_OK && fill) {
            status = vocab_set(&r->t->vocab, (int32_t)id, token.data, token.n, r->err);
            r->t->unigram.score[id] = score;
        }
        size->highest = id++;
        size->n_byte += token.n;
    }
    text_buffer_clear(&token);
    return status;
}

static nib_status read_unigram(json_reading *r, const json_t *model) {
    tokenizer *t = r->t;
    unigram *u = &t->unigram;
    vocab_size size = {-1, 0};
    int64_t unk = -1;
    if (r->byte_level)
        return nib_fail(r->err, NIB_E_MODEL,
                        "tokenizer.json: a Unigram model after a ByteLevel pre-tokenizer is not supported");
    NIB_TRY(walk_unigram_vocab(r, false, &size));
    NIB_TRY(vocab_init(&t->vocab, highest_added(r, size.highest) + 1, size.n_byte, r->err));
    t->vocab.n_model = (int32_t)size.highest + 1;
    t->model = MODEL_UNIGRAM;
    u->score = mem_calloc((size_t)t->vocab.n, sizeof *u->score);
    if (!u->score)
        return nib_fail_nomem(r->err, (size_t)t->vocab.n * sizeof *u->score, "the scores");
    NIB_TRY(walk_unigram_vocab(r, true, &size));
    NIB_TRY(jsonx_get_i64(model, "unk_id", false, &unk, r->err));
    if (unk < -1 || unk >= t->vocab.n)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: unk_id: expected an id below %d, found %lld",
                        t->vocab.n, (long long)unk);
    u->unk = (int32_t)unk;
    u->fuse_unk = true;
    NIB_TRY(jsonx_get_bool(model, "byte_fallback", false, &u->byte_fallback, r->err));
    find_bytes(&t->vocab, false, u->byte_id);
    NIB_TRY(json_read_added(r));
    return unigram_init(u, &t->vocab, r->err);
}

nib_status json_read_model(json_reading *r) {
    const json_t *model = json_object_get(r->root, "model");
    const char *type = NULL;
    if (!json_is_object(model))
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: expected an object 'model'");
    NIB_TRY(jsonx_get_string(model, "type", false, &type, r->err));
    if (!r->vocab.begin)
        return nib_fail(r->err, NIB_E_MODEL, "tokenizer.json: model: expected a vocab, found none");
    if (!type) /* the earliest files of this format have no type */
        type = r->merges.begin ? "BPE" : "Unigram";
    if (strcmp(type, "BPE") == 0)
        return read_bpe(r, model);
    if (strcmp(type, "Unigram") == 0)
        return read_unigram(r, model);
    return json_refuse(r, "model", type);
}
