/* kv_repeat.c - the other ranks' part of kv_calls.h. Records come from the first rank of the same program
 * over a connection, so their numbers are checked before they are used as indices. */
#include "state/kv_calls_parts.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_POOL = 64, MAX_TABLE = 1 << 24, MAX_POSITION = 1 << 28 };

struct kv_repeat {
    nib_status (*memory)(void *user, kv_formats formats, kv_call_memory *out, nib_error *err);
    void *user;
    kv_call_memory pools[MAX_POOL];
    int32_t n_pool;
    kv_table **tables; /* [n_table]; NULL: closed */
    size_t n_table, cap_table;
    int32_t *tokens; /* a copy with the alignment of tokens */
    size_t cap_token;
};

nib_status kv_repeat_open(nib_status (*memory)(void *, kv_formats, kv_call_memory *, nib_error *), void *user,
                          kv_repeat **out, nib_error *err) {
    kv_repeat *r = mem_calloc(1, sizeof *r);
    if (!r)
        return nib_fail_nomem(err, sizeof *r, "a rank's sequences");
    r->memory = memory;
    r->user = user;
    *out = r;
    return NIB_OK;
}

static void close_table(kv_repeat *r, size_t number) {
    if (!r->tables[number])
        return;
    kv_table_close(r->tables[number]);
    mem_free(r->tables[number]);
    r->tables[number] = NULL;
}

void kv_repeat_close(kv_repeat *r) {
    if (!r)
        return;
    for (size_t i = 0; i < r->n_table; i++)
        close_table(r, i);
    mem_free((void *)r->tables);
    mem_free(r->tokens);
    mem_free(r);
}

kv_table *kv_repeat_table(const kv_repeat *r, int32_t number) {
    return number >= 0 && (size_t)number < r->n_table ? r->tables[number] : NULL;
}

static nib_status damaged(nib_error *err, const kv_call *call) {
    return nib_fail(err, NIB_E_FAILED, "expected a call of a sequence, found kind %d of table %d and pool %d",
                    call->kind, call->table, call->pool);
}

static nib_status open_pool(kv_repeat *r, const kv_call *call, nib_error *err) {
    uint8_t *layers = NULL;
    kv_formats f = {.type = (type_id)call->arg[0],
                    .slides = call->arg[1] != 0,
                    .kept = (int)call->arg[2],
                    .rows = (int)call->arg[3]};
    if (r->n_pool == MAX_POOL || call->pool != r->n_pool)
        return damaged(err, call);
    if (call->n_token > 0 && !(layers = mem_alloc((size_t)call->n_token)))
        return nib_fail_nomem(err, (size_t)call->n_token, "the formats of keys and values");
    for (int64_t i = 0; i < call->n_token; i++)
        layers[i] = (uint8_t)r->tokens[i];
    f.layers = layers;
    f.n_layer = (int)call->n_token;
    const nib_status status = r->memory(r->user, f, &r->pools[r->n_pool], err);
    mem_free(layers);
    r->n_pool += status == NIB_OK;
    return status;
}

static nib_status open_table(kv_repeat *r, const kv_call *call, nib_error *err) {
    const kv_amount amount = {.page = call->arg[2], .part = call->arg[3]};
    if (call->pool < 0 || call->pool >= r->n_pool || call->table < 0 || (size_t)call->table != r->n_table ||
        call->table >= MAX_TABLE || call->arg[0] < 0 || call->arg[0] >= MAX_POSITION)
        return damaged(err, call);
    const kv_call_memory *on = &r->pools[call->pool];
    if (mem_grow((void **)&r->tables, &r->cap_table, r->n_table + 1, sizeof *r->tables))
        return nib_fail_nomem(err, (r->n_table + 1) * sizeof *r->tables, "a rank's sequences");
    kv_table *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "a rank's sequence");
    const nib_status status = kv_table_open(t, on->pool, on->layout, on->device, on->ledger, call->arg[0],
                                            call->arg[1] ? &amount : NULL, err);
    if (status != NIB_OK) {
        mem_free(t);
        return status;
    }
    r->tables[r->n_table++] = t;
    return NIB_OK;
}

/* The record's position must be that of this rank. */
static nib_status same(const kv_call *call, int64_t found, nib_error *err) {
    if (found == call->result)
        return NIB_OK;
    return nib_fail(err, NIB_E_FAILED,
                    "expected sequence %d to continue at position %lld, as on the first rank, found %lld",
                    call->table, (long long)call->result, (long long)found);
}

static bool holds(const kv_table *t, int64_t n) {
    return n >= 0 && n <= t->n_ctx;
}

static nib_status call_table(kv_repeat *r, const kv_call *call, kv_table *t, nib_error *err) {
    const int64_t a = call->arg[0], b = call->arg[1], from = a / KV_BLOCK * KV_BLOCK;
    kv_table *other;
    if (call->kind != KV_CALL_SHARE && !holds(t, a))
        return damaged(err, call);
    switch (call->kind) {
    case KV_CALL_CLOSE: close_table(r, (size_t)call->table); return NIB_OK;
    case KV_CALL_KEEP: return same(call, kv_table_keep(t, a), err);
    case KV_CALL_REACH:
        return holds(t, b) ? kv_table_reach(t, a, b, b, call->arg[2] != 0, err) : damaged(err, call);
    case KV_CALL_FILL: return kv_table_fill(t, a, err);
    case KV_CALL_SETTLE: kv_table_settle(t); return NIB_OK;
    case KV_CALL_ADVANCE: return same(call, kv_table_advance(t, a), err);
    case KV_CALL_LEARN:
        if (!holds(t, b) || call->n_token != b - from)
            return damaged(err, call);
        kv_table_learn(t, r->tokens, a, b);
        return NIB_OK;
    case KV_CALL_ADOPT:
        if (!holds(t, b) || call->n_token != b)
            return damaged(err, call);
        return same(call, kv_table_adopt(t, r->tokens, a, b), err);
    case KV_CALL_SHARE:
        other = kv_repeat_table(r, (int32_t)a);
        if (!other || b < 0 || b > other->n_page)
            return damaged(err, call);
        kv_table_share(t, other, b);
        return NIB_OK;
    default: return damaged(err, call);
    }
}

static nib_status repeat(kv_repeat *r, const kv_call *call, nib_error *err) {
    const kv_amount n = {.page = call->arg[0], .part = call->arg[1]};
    const bool of_pool = call->kind == KV_CALL_RESERVE || call->kind == KV_CALL_UNRESERVE;
    kv_table *t = kv_repeat_table(r, call->table);
    if (call->kind == KV_CALL_POOL)
        return open_pool(r, call, err);
    if (call->kind == KV_CALL_OPEN)
        return open_table(r, call, err);
    if (of_pool && (call->pool < 0 || call->pool >= r->n_pool || n.page < 0 || n.part < 0))
        return damaged(err, call);
    if (call->kind == KV_CALL_RESERVE)
        return kv_pool_reserve(r->pools[call->pool].pool, n, true, err);
    if (call->kind == KV_CALL_UNRESERVE) {
        kv_pool_unreserve(r->pools[call->pool].pool, n);
        return NIB_OK;
    }
    return t ? call_table(r, call, t, err) : damaged(err, call);
}

/* The position of a record's first token. */
static size_t first_token(const kv_call *call) {
    const int64_t at = call->kind == KV_CALL_LEARN ? call->arg[0] / KV_BLOCK * KV_BLOCK : 0;
    return at > 0 && at < MAX_POSITION ? (size_t)at : 0;
}

nib_status kv_repeat_calls(kv_repeat *r, const void *bytes, size_t n_byte, nib_error *err) {
    const uint8_t *at = bytes, *end = at + n_byte;
    while (at < end) {
        kv_call call = {.kind = KV_CALL_COUNT};
        if ((size_t)(end - at) < sizeof call)
            return damaged(err, &call);
        memcpy(&call, at, sizeof call);
        if (call.n_token < 0 || call.n_token > MAX_POSITION || kv_call_bytes(&call) > (uint64_t)(end - at))
            return damaged(err, &call);
        const size_t own = (size_t)call.n_token * sizeof *r->tokens, from = first_token(&call);
        if (mem_grow((void **)&r->tokens, &r->cap_token, from + (size_t)call.n_token + 1, sizeof *r->tokens))
            return nib_fail_nomem(err, own, "a sequence's tokens");
        if (own > 0)
            memcpy(r->tokens + from, at + sizeof call, own);
        at += kv_call_bytes(&call);
        NIB_TRY(repeat(r, &call, err));
    }
    return NIB_OK;
}
