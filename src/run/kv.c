/* kv.c - see kv.h. Shapes come from the attention ops themselves, so that layers may differ. */
#include "run/kv.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

#define PAGE 4096u

static const op *attention_of(const model *m, int layer) {
    for (int b = 0; b < model_n_block(m); b++) {
        const program *p = &model_block(m, b)->program;
        for (int i = 0; i < p->n_op; i++)
            if (p->ops[i].kind == OP_ATTENTION && p->ops[i].u.attn.layer == layer)
                return &p->ops[i];
    }
    return NULL;
}

/* Bytes of k (v has as many), page-aligned so that layers do not share pages. */
static bool layer_bytes(const op *o, type_id type, int64_t n_ctx, uint64_t *bytes) {
    if (!kv_bytes(type, n_ctx, o->u.attn.n_kv_head, o->u.attn.d_head, bytes) || *bytes > UINT64_MAX - PAGE)
        return false;
    *bytes = (*bytes + PAGE - 1) / PAGE * PAGE;
    return true;
}

nib_status kv_cache_bytes(const model *m, type_id type, int64_t n_ctx, uint64_t *bytes, nib_error *err) {
    uint64_t total = 0, one, two;
    for (int i = 0; i < model_n_kv_layer(m); i++) {
        const op *o = attention_of(m, i);
        if (!o)
            continue;
        if (!layer_bytes(o, type, n_ctx, &one) || !num_mul_u64(one, 2, &two) ||
            !num_add_u64(total, two, &total))
            return nib_fail(err, NIB_E_NOFIT, "keys and values of %lld positions overflow 64 bits",
                            (long long)n_ctx);
    }
    *bytes = total;
    return NIB_OK;
}

uint64_t kv_cache_touched(const model *m, type_id type, int64_t n_ctx, int64_t n) {
    uint64_t touched = 0;
    for (int i = 0; i < model_n_kv_layer(m); i++) {
        const op *o = attention_of(m, i);
        if (!o)
            continue;
        const kv_view one = {NULL, NULL, type, n_ctx, o->u.attn.n_kv_head, o->u.attn.d_head};
        touched += 2 * kv_touched(&one, n, PAGE);
    }
    return touched;
}

nib_status kv_cache_one_bytes(const model *m, type_id type, int64_t n_ctx, uint64_t *bytes, nib_error *err) {
    uint64_t one, two;
    *bytes = 0;
    for (int i = 0; i < model_n_kv_layer(m); i++) {
        const op *o = attention_of(m, i);
        if (!o)
            continue;
        if (!layer_bytes(o, type, n_ctx, &one) || !num_mul_u64(one, 2, &two))
            return nib_fail(err, NIB_E_NOFIT, "keys and values of %lld positions overflow 64 bits",
                            (long long)n_ctx);
        *bytes = NUM_MAX(*bytes, two);
    }
    return NIB_OK;
}

/* `one`: all layers begin at the same place. */
static nib_status open_cache(kv_cache *kv, const model *m, ledger *l, type_id type, int64_t n_ctx,
                             uint64_t bytes, bool one, nib_error *err) {
    memset(kv, 0, sizeof *kv);
    NIB_TRY(
        tier_region_open(&kv->memory, device_host(), l, NIB_OWNER_KV, bytes, true, "keys and values", err));
    kv->n_ctx = n_ctx;
    kv->coded = kv_is_coded(type);
    kv->n_layer = model_n_kv_layer(m);
    kv->layers = mem_calloc((size_t)NUM_MAX(kv->n_layer, 1), sizeof *kv->layers);
    if (!kv->layers) {
        kv_cache_close(kv);
        return nib_fail_nomem(err, bytes, "the list of layers");
    }
    uint8_t *at = kv->memory.at;
    for (int i = 0; i < kv->n_layer; i++) {
        const op *o = attention_of(m, i);
        uint64_t each = 0;
        if (!o || !layer_bytes(o, type, n_ctx, &each))
            continue;
        kv->layers[i] = (kv_view){at, at + each, type, n_ctx, o->u.attn.n_kv_head, o->u.attn.d_head};
        if (!one)
            at += 2 * each;
    }
    return NIB_OK;
}

nib_status kv_cache_open(kv_cache *kv, const model *m, ledger *l, type_id type, int64_t n_ctx,
                         nib_error *err) {
    uint64_t bytes;
    NIB_TRY(kv_cache_bytes(m, type, n_ctx, &bytes, err));
    return open_cache(kv, m, l, type, n_ctx, bytes, false, err);
}

nib_status kv_cache_open_one(kv_cache *kv, const model *m, ledger *l, type_id type, int64_t n_ctx,
                             nib_error *err) {
    uint64_t bytes;
    NIB_TRY(kv_cache_one_bytes(m, type, n_ctx, &bytes, err));
    return open_cache(kv, m, l, type, n_ctx, bytes, true, err);
}

void kv_cache_close(kv_cache *kv) {
    mem_free(kv->layers);
    tier_region_close(&kv->memory);
    memset(kv, 0, sizeof *kv);
}

void kv_cache_reach(kv_cache *kv, int64_t n_position) {
    if (n_position > 0)
        kv->held = NUM_MAX(kv->held, ((n_position - 1) / KV_BLOCK - 1) * KV_BLOCK);
    if (n_position <= kv->n_seen)
        return;
    kv->n_seen = n_position;
    uint64_t touched = 0;
    for (int i = 0; i < kv->n_layer; i++)
        if (kv->layers[i].k)
            touched += 2 * kv_touched(&kv->layers[i], n_position, PAGE);
    tier_region_touch(&kv->memory, touched);
}

int64_t kv_cache_keep(kv_cache *kv, int64_t n) {
    const int64_t begin = n / KV_BLOCK * KV_BLOCK; /* of the block that n is in */
    if (!kv->coded)
        return n;
    if (begin < kv->held)
        n = begin;
    kv->held = NUM_MIN(kv->held, begin);
    return n;
}
