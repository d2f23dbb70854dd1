/* read_gguf.c - reads a tokenizer from GGUF metadata (tokenizer.ggml.*; the keys are those of the GGUF
 * specification). Token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. */
#include "tokenizer/state.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

#define KEY(name) "tokenizer.ggml." name

typedef struct reading {
    tokenizer *t;
    const container *c;
    const logger *log;
    nib_error *err;
} reading;

/* Finds an array of n elements of this type; *out NULL: it is missing. */
static nib_status array(const reading *r, const char *key, meta_type elem, size_t n, const meta_value **out) {
    const meta_value *v = container_meta(r->c, key);
    *out = NULL;
    if (!v)
        return NIB_OK;
    if (v->type != META_ARRAY || (v->n && v->elem != elem))
        return nib_fail(r->err, NIB_E_MODEL, "%s: expected an array of %s", key,
                        elem == META_STRING ? "strings"
                        : elem == META_INT  ? "integers"
                                            : "floats");
    if (n != SIZE_MAX && v->n != n)
        return nib_fail(r->err, NIB_E_MODEL, "%s: expected %zu elements, one for each token, found %zu", key,
                        n, v->n);
    *out = v;
    return NIB_OK;
}

static nib_status required(const reading *r, const char *key, meta_type elem, size_t n,
                           const meta_value **out) {
    NIB_TRY(array(r, key, elem, n, out));
    return *out ? NIB_OK : nib_fail(r->err, NIB_E_MODEL, "%s: expected an array, found nothing", key);
}

static uint8_t flags_of_type(int64_t type) {
    switch (type) {
    case 2: return VOCAB_ADDED | VOCAB_UNKNOWN | VOCAB_CONTROL;
    case 3: return VOCAB_ADDED | VOCAB_CONTROL;
    case 4: return VOCAB_ADDED;
    case 6: return VOCAB_BYTE;
    default: return 0;
    }
}

static nib_status read_vocab(const reading *r) {
    const meta_value *tokens, *types;
    NIB_TRY(required(r, KEY("tokens"), META_STRING, SIZE_MAX, &tokens));
    NIB_TRY(array(r, KEY("token_type"), META_INT, tokens->n, &types));
    size_t bytes = 0;
    for (size_t i = 0; i < tokens->n; i++)
        bytes += tokens->v.strings[i].n_byte;
    vocab *v = &r->t->vocab;
    NIB_TRY(vocab_init(v, (int64_t)NUM_MIN(tokens->n, (size_t)MAX_VOCAB), bytes, r->err));
    for (int32_t i = 0; i < v->n; i++) {
        NIB_TRY(vocab_set(v, i, tokens->v.strings[i].data, tokens->v.strings[i].n_byte, r->err));
        v->flags[i] = types ? flags_of_type(types->v.ints[i]) : 0;
    }
    return NIB_OK;
}

/* A special token's id: -1 and 2^32 - 1 mean none. */
static nib_status read_id(const reading *r, const char *key, int32_t fallback, int32_t *out) {
    int64_t id = fallback < r->t->vocab.n ? fallback : -1;
    if (container_meta_i64(r->c, key, &id) && (id == UINT32_MAX || id == -1))
        id = -1;
    else if (id < -1 || id >= r->t->vocab.n)
        return nib_fail(r->err, NIB_E_MODEL, "%s: expected a token id below %d, found %lld", key,
                        r->t->vocab.n, (long long)id);
    *out = (int32_t)id;
    return NIB_OK;
}

/* Reads the special ids and whether BOS and EOS are added; the arguments are the defaults. */
static nib_status read_specials(const reading *r, int32_t bos, int32_t eos, int32_t unk, bool add_bos,
                                bool add_eos) {
    tokenizer *t = r->t;
    int32_t end;
    NIB_TRY(read_id(r, KEY("bos_token_id"), bos, &t->bos));
    NIB_TRY(read_id(r, KEY("eos_token_id"), eos, &t->eos));
    NIB_TRY(read_id(r, KEY("unknown_token_id"), unk, &t->unk));
    NIB_TRY(read_id(r, KEY("eot_token_id"), -1, &end));
    NIB_TRY(tokenizer_add_end(t, end, r->err));
    NIB_TRY(read_id(r, KEY("eom_token_id"), -1, &end));
    NIB_TRY(tokenizer_add_end(t, end, r->err));
    container_meta_bool(r->c, KEY("add_bos_token"), &add_bos);
    container_meta_bool(r->c, KEY("add_eos_token"), &add_eos);
    t->prefix[0] = t->bos;
    t->n_prefix = add_bos && t->bos >= 0;
    t->suffix[0] = t->eos;
    t->n_suffix = add_eos && t->eos >= 0;
    return NIB_OK;
}

/* ---- byte-level BPE ---- */

static int32_t id_of(const vocab *v, const char *text, size_t n) {
    return n ? vocab_find(v, text, n) : -1;
}

/* Reads one merge: two tokens with a space between. *out stays free if it is not one. joined: scratch. */
static nib_status read_merge(const reading *r, meta_string merge, text_buffer *joined, merge_pair *out) {
    const vocab *v = &r->t->vocab;
    const char *text = merge.data;
    const char *space = merge.n_byte > 1 ? memchr(text + 1, ' ', merge.n_byte - 1) : NULL;
    if (!space)
        return NIB_OK;
    size_t n_left = (size_t)(space - text), n_right = merge.n_byte - n_left - 1;
    joined->n = 0;
    NIB_TRY(text_append(joined, text, n_left, r->err));
    NIB_TRY(text_append(joined, space + 1, n_right, r->err));
    int32_t left = id_of(v, text, n_left), right = id_of(v, space + 1, n_right);
    int32_t both = id_of(v, joined->data, joined->n);
    if (left >= 0 && right >= 0 && both >= 0)
        *out = (merge_pair){.left = (uint32_t)left, .right = (uint32_t)right, .joined = (uint32_t)both};
    return NIB_OK;
}

static nib_status read_merges(const reading *r) {
    const meta_value *list;
    merges *m = &r->t->merges;
    text_buffer joined = {0};
    size_t n_left_out = 0;
    nib_status status = NIB_OK;
    NIB_TRY(required(r, KEY("merges"), META_STRING, SIZE_MAX, &list));
    NIB_TRY(merges_init_pairs(m, list->n, r->err));
    for (size_t i = 0; i < list->n && status == NIB_OK; i++) {
        merge_pair pair = {.left = MERGE_FREE};
        status = read_merge(r, list->v.strings[i], &joined, &pair);
        if (pair.left == MERGE_FREE)
            n_left_out++;
        else
            merges_put(m, pair.left, pair.right, (uint32_t)i, pair.joined);
    }
    text_buffer_clear(&joined);
    if (status == NIB_OK && n_left_out)
        log_line(r->log, "tokenizer: %zu of %zu merges do not join two tokens to a third one and are ignored",
                 n_left_out, list->n);
    return status;
}

static bool listed(const char *name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static nib_status read_bpe(const reading *r) {
    /* Vocabularies that encode a piece which is a token as that token, and that begin a text with BOS. */
    static const char *const whole[] = {"llama3",  "llama-v3", "llama-bpe", "falcon3",      "falcon-h1",
                                        "pixtral", "midm-2.0", "lfm2",      "jina-v5-nano", "tekken"};
    tokenizer *t = r->t;
    const char *pre = container_meta_str(r->c, KEY("pre"));
    bool known;
    if (!pre) {
        log_line(r->log,
                 "tokenizer: the file does not name its pre-tokenizer (" KEY("pre") "); using 'default'");
        pre = "default";
    }
    NIB_TRY(splitter_add_named(&t->splitter, pre, &known, r->err));
    if (!known)
        return nib_fail(r->err, NIB_E_MODEL, KEY("pre") ": unknown pre-tokenizer '%.80s'", pre);
    t->merges.kind = MERGES_BYTES;
    t->merges.keeps_unknown = true;
    t->merges.whole_first = listed(pre, whole, NUM_COUNT(whole));
    NIB_TRY(read_merges(r));
    for (int b = 0; b < 256; b++) {
        char text[4];
        t->merges.byte_id[b] = vocab_find(&t->vocab, text, utf8_put(byte_to_char((unsigned char)b), text));
    }
    decode_step *step = NULL;
    NIB_TRY(decoder_add(&t->decoder, DECODE_BYTE_LEVEL, &step, r->err));
    NIB_TRY(read_specials(r, -1, -1, -1, t->merges.whole_first, false));
    return NIB_OK;
}

/* ---- SentencePiece ---- */

static void find_bytes(const vocab *v, int32_t byte_id[256]) {
    static const char hex[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; b++) {
        char text[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'}, byte = (char)b;
        byte_id[b] = vocab_find(v, text, 6);
        if (byte_id[b] < 0)
            byte_id[b] = vocab_find(v, &byte, 1);
    }
}

static nib_status add_space_decoder(const reading *r, bool strip) {
    decoder *d = &r->t->decoder;
    decode_step *step = NULL;
    NIB_TRY(decoder_add(d, DECODE_BYTE_FALLBACK, &step, r->err));
    NIB_TRY(decoder_add_replace(d, "\xE2\x96\x81", " ", r->err));
    if (!strip)
        return NIB_OK;
    NIB_TRY(decoder_add(d, DECODE_FUSE, &step, r->err));
    NIB_TRY(decoder_add(d, DECODE_STRIP, &step, r->err));
    step->start = 1;
    step->n_from = 1;
    step->from = mem_strdup(" ");
    return step->from ? NIB_OK : nib_fail_nomem(r->err, 2, "the decoder");
}

static nib_status add_replacement(const reading *r, normal_kind kind, const char *from, const char *to) {
    normal_step *step = NULL;
    NIB_TRY(normalizer_add(&r->t->normalizer, kind, &step, r->err));
    step->n_from = strlen(from);
    step->n_to = strlen(to);
    step->from = mem_strdup(from);
    step->to = mem_strdup(to);
    return step->from && step->to ? NIB_OK : nib_fail_nomem(r->err, step->n_to, "a normalizer");
}

static nib_status read_spm(const reading *r) {
    tokenizer *t = r->t;
    const meta_value *scores;
    bool prefix = true;
    NIB_TRY(required(r, KEY("scores"), META_FLOAT, (size_t)t->vocab.n, &scores));
    t->merges.kind = MERGES_SCORES;
    t->merges.score = mem_array((size_t)t->vocab.n, sizeof *t->merges.score);
    if (!t->merges.score)
        return nib_fail_nomem(r->err, (size_t)t->vocab.n * sizeof *t->merges.score, "the scores");
    for (int32_t i = 0; i < t->vocab.n; i++)
        t->merges.score[i] = (float)scores->v.floats[i];
    find_bytes(&t->vocab, t->merges.byte_id);
    merges_find_cuts(&t->merges, &t->vocab);
    container_meta_bool(r->c, KEY("add_space_prefix"), &prefix);
    if (prefix)
        NIB_TRY(add_replacement(r, NORMAL_PREPEND, "", " "));
    NIB_TRY(add_replacement(r, NORMAL_REPLACE, " ", "\xE2\x96\x81"));
    NIB_TRY(add_space_decoder(r, prefix));
    NIB_TRY(read_specials(r, 1, 2, 0, true, false));
    t->merges.unk = t->unk;
    return NIB_OK;
}

static nib_status read_charsmap(const reading *r, charsmap **out) {
    const meta_value *map;
    NIB_TRY(array(r, KEY("precompiled_charsmap"), META_INT, SIZE_MAX, &map));
    if (!map || !map->n)
        return NIB_OK;
    char *bytes = mem_alloc(map->n);
    if (!bytes)
        return nib_fail_nomem(r->err, map->n, "the charsmap");
    for (size_t i = 0; i < map->n; i++)
        bytes[i] = (char)map->v.ints[i];
    nib_status status = charsmap_open(bytes, map->n, out, r->err);
    mem_free(bytes);
    return status;
}

static nib_status read_unigram(const reading *r) {
    tokenizer *t = r->t;
    const meta_value *scores;
    normal_step *step = NULL;
    NIB_TRY(required(r, KEY("scores"), META_FLOAT, (size_t)t->vocab.n, &scores));
    t->model = MODEL_UNIGRAM;
    t->unigram.score = mem_array((size_t)t->vocab.n, sizeof *t->unigram.score);
    if (!t->unigram.score)
        return nib_fail_nomem(r->err, (size_t)t->vocab.n * sizeof *t->unigram.score, "the scores");
    memcpy(t->unigram.score, scores->v.floats, (size_t)t->vocab.n * sizeof *t->unigram.score);
    NIB_TRY(normalizer_add(&t->normalizer, NORMAL_SENTENCEPIECE, &step, r->err));
    step->left = true;
    container_meta_bool(r->c, KEY("add_space_prefix"), &step->left);
    container_meta_bool(r->c, KEY("remove_extra_whitespaces"), &step->right);
    NIB_TRY(read_charsmap(r, &step->map));
    NIB_TRY(add_space_decoder(r, step->left || step->right));
    NIB_TRY(read_specials(r, -1, 1, 2, false, true));
    if (t->unk < 0)
        return nib_fail(r->err, NIB_E_MODEL,
                        KEY("unknown_token_id") ": a Unigram model needs one, found none");
    t->unigram.unk = t->unk;
    t->unigram.fuse_unk = true;
    return unigram_init(&t->unigram, &t->vocab, r->err);
}

/* Phi-3's special tokens strip the white space after them; its files show this only by the model's name. */
static void strip_by_name(const reading *r) {
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    const char *name = container_meta_str(r->c, "general.name");
    vocab *v = &r->t->vocab;
    int32_t id;
    if (!name || !(strcasestr(name, "phi-3") || strcasestr(name, "phi3")))
        return;
    for (int32_t i = 0; i < v->n; i++)
        if (v->flags[i] & VOCAB_ADDED)
            v->flags[i] |= VOCAB_RSTRIP;
    for (size_t i = 0; i < NUM_COUNT(plain); i++)
        if ((id = vocab_find(v, plain[i], strlen(plain[i]))) >= 0)
            v->flags[id] &= (uint8_t)~VOCAB_RSTRIP;
}

nib_status tokenizer_read_gguf(tokenizer *t, const container *c, const logger *log, nib_error *err) {
    reading r = {t, c, log, err};
    const char *model = container_meta_str(c, KEY("model"));
    nib_status (*read)(const reading *) = !model                        ? NULL
                                          : strcmp(model, "gpt2") == 0  ? read_bpe
                                          : strcmp(model, "llama") == 0 ? read_spm
                                          : strcmp(model, "t5") == 0    ? read_unigram
                                                                        : NULL;
    if (!model || strcmp(model, "none") == 0 || strcmp(model, "no_vocab") == 0)
        return nib_fail(err, NIB_E_NOTFOUND, "%s: expected a tokenizer, found none", container_path(c));
    if (!read)
        return nib_fail(err, NIB_E_MODEL, KEY("model") ": expected gpt2, llama or t5, found '%.80s'", model);
    t->fix_types = t->decoder.raw_added = true;
    NIB_TRY(read_vocab(&r));
    NIB_TRY(read(&r));
    strip_by_name(&r);
    return NIB_OK;
}
