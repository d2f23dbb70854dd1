/* kv_calls.c - the first rank's part of kv_calls.h. */
#include "state/kv_calls_parts.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct kv_log {
    pthread_mutex_t lock;
    uint8_t *bytes;
    size_t n_byte, cap;
    int32_t n_table, n_pool;
    bool lost; /* a record did not fit in memory: the other ranks cannot follow */
};

nib_status kv_log_open(kv_log **out, nib_error *err) {
    kv_log *log = mem_calloc(1, sizeof *log);
    if (!log)
        return nib_fail_nomem(err, sizeof *log, "the calls of sequences");
    pthread_mutex_init(&log->lock, NULL);
    *out = log;
    return NIB_OK;
}

void kv_log_close(kv_log *log) {
    if (!log)
        return;
    pthread_mutex_destroy(&log->lock);
    mem_free(log->bytes);
    mem_free(log);
}

nib_status kv_log_take(kv_log *log, void **bytes, size_t *cap, size_t *n_byte, nib_error *err) {
    pthread_mutex_lock(&log->lock);
    const size_t all = *n_byte + log->n_byte;
    const bool failed = log->lost || mem_grow(bytes, cap, all, 1);
    if (!failed) {
        if (log->n_byte > 0)
            memcpy((uint8_t *)*bytes + *n_byte, log->bytes, log->n_byte);
        *n_byte = all;
        log->n_byte = 0;
    }
    pthread_mutex_unlock(&log->lock);
    return failed ? nib_fail_nomem(err, all, "the calls of sequences") : NIB_OK;
}

/* The lock of a pool's log is held from begin to the end of the record, so that the order of records is that
 * of the calls. */
static kv_log *begin(kv_pool *pool) {
    kv_log *log = kv_pool_log(pool);
    if (log)
        pthread_mutex_lock(&log->lock);
    return log;
}

static void end(kv_log *log) {
    if (log)
        pthread_mutex_unlock(&log->lock);
}

static void append(kv_log *log, kv_call call, const int32_t *tokens) {
    const size_t own = kv_call_bytes(&call), n_token = (size_t)call.n_token;
    if (!log)
        return;
    if (mem_grow((void **)&log->bytes, &log->cap, log->n_byte + own, 1)) {
        log->lost = true;
        return;
    }
    uint8_t *at = log->bytes + log->n_byte;
    memset(at, 0, own);
    memcpy(at, &call, sizeof call);
    if (tokens && n_token > 0)
        memcpy(at + sizeof call, tokens, n_token * sizeof *tokens);
    log->n_byte += own;
}

nib_status kv_log_watch(kv_log *log, kv_pool *pool, nib_error *err) {
    const kv_formats f = kv_pool_paging(pool)->formats;
    int32_t *types = mem_array((size_t)f.n_layer + 1, sizeof *types);
    if (!types)
        return nib_fail_nomem(err, (size_t)f.n_layer * sizeof *types, "the formats of keys and values");
    for (int i = 0; i < f.n_layer; i++)
        types[i] = f.layers[i];
    pthread_mutex_lock(&log->lock);
    kv_pool_set_log(pool, log, log->n_pool);
    append(log,
           (kv_call){.kind = KV_CALL_POOL,
                     .pool = log->n_pool++,
                     .arg = {(int64_t)f.type, f.slides, f.kept, f.rows},
                     .n_token = f.layers ? f.n_layer : 0},
           types);
    pthread_mutex_unlock(&log->lock);
    mem_free(types);
    return NIB_OK;
}

/* ---- pools ---- */

nib_status kv_call_reserve(kv_pool *pool, kv_amount n, nib_error *err) {
    kv_log *log = begin(pool);
    const nib_status status = kv_pool_reserve(pool, n, true, err);
    if (status == NIB_OK)
        append(log, (kv_call){.kind = KV_CALL_RESERVE, .pool = kv_pool_number(pool), .arg = {n.page, n.part}},
               NULL);
    end(log);
    return status;
}

void kv_call_unreserve(kv_pool *pool, kv_amount n) {
    kv_log *log = begin(pool);
    kv_pool_unreserve(pool, n);
    append(log, (kv_call){.kind = KV_CALL_UNRESERVE, .pool = kv_pool_number(pool), .arg = {n.page, n.part}},
           NULL);
    end(log);
}

/* ---- tables ---- */

static void record(kv_log *log, kv_call_kind kind, const kv_table *t, int64_t a, int64_t b, int64_t result) {
    append(log, (kv_call){.kind = kind, .table = t->number, .arg = {a, b}, .result = result}, NULL);
}

nib_status kv_call_open(kv_table *t, kv_pool *pool, const layout *lay, device *d, ledger *l, int64_t n_ctx,
                        const kv_amount *reserved, nib_error *err) {
    kv_log *log = begin(pool);
    const nib_status status = kv_table_open(t, pool, lay, d, l, n_ctx, reserved, err);
    if (status == NIB_OK && log) {
        t->number = log->n_table++;
        append(log,
               (kv_call){.kind = KV_CALL_OPEN,
                         .pool = kv_pool_number(pool),
                         .table = t->number,
                         .arg = {n_ctx, reserved != NULL, reserved ? reserved->page : 0,
                                 reserved ? reserved->part : 0}},
               NULL);
    }
    end(log);
    return status;
}

void kv_call_close(kv_table *t) {
    if (!t->pool)
        return;
    kv_log *log = begin(t->pool);
    record(log, KV_CALL_CLOSE, t, 0, 0, 0);
    kv_table_close(t);
    end(log);
}

int64_t kv_call_keep(kv_table *t, int64_t n) {
    kv_log *log = begin(t->pool);
    const int64_t result = kv_table_keep(t, n);
    record(log, KV_CALL_KEEP, t, n, 0, result);
    end(log);
    return result;
}

/* A failed call has changed the table in part, and the others cannot follow. */
nib_status kv_call_reach(kv_table *t, int64_t first, int64_t to, int64_t proposed, bool generated,
                         nib_error *err) {
    kv_log *log = begin(t->pool);
    const nib_status status = kv_table_reach(t, first, to, proposed, generated, err);
    append(log, (kv_call){.kind = KV_CALL_REACH, .table = t->number, .arg = {first, to, generated}}, NULL);
    if (log && status != NIB_OK)
        log->lost = true;
    end(log);
    return status;
}

nib_status kv_call_fill(kv_table *t, int64_t to, nib_error *err) {
    kv_log *log = begin(t->pool);
    const nib_status status = kv_table_fill(t, to, err);
    record(log, KV_CALL_FILL, t, to, 0, 0);
    if (log && status != NIB_OK)
        log->lost = true;
    end(log);
    return status;
}

void kv_call_settle(kv_table *t) {
    kv_log *log = begin(t->pool);
    kv_table_settle(t);
    record(log, KV_CALL_SETTLE, t, 0, 0, 0);
    end(log);
}

int64_t kv_call_advance(kv_table *t, int64_t n) {
    kv_log *log = begin(t->pool);
    const int64_t result = kv_table_advance(t, n);
    record(log, KV_CALL_ADVANCE, t, n, 0, result);
    end(log);
    return result;
}

/* Tokens before the first changed page are not read. */
void kv_call_learn(kv_table *t, const int32_t *tokens, int64_t first, int64_t to) {
    const int64_t from = first / KV_BLOCK * KV_BLOCK;
    kv_log *log = begin(t->pool);
    kv_table_learn(t, tokens, first, to);
    append(log,
           (kv_call){.kind = KV_CALL_LEARN, .table = t->number, .arg = {first, to}, .n_token = to - from},
           tokens + from);
    end(log);
}

int64_t kv_call_adopt(kv_table *t, const int32_t *tokens, int64_t n_held, int64_t n) {
    if (n <= n_held) /* nothing can be found, and nothing changes */
        return n_held;
    kv_log *log = begin(t->pool);
    const int64_t result = kv_table_adopt(t, tokens, n_held, n);
    append(log,
           (kv_call){
               .kind = KV_CALL_ADOPT, .table = t->number, .arg = {n_held, n}, .result = result, .n_token = n},
           tokens);
    end(log);
    return result;
}

void kv_call_share(kv_table *t, const kv_table *from, int64_t n_page) {
    kv_log *log = begin(t->pool);
    kv_table_share(t, from, n_page);
    record(log, KV_CALL_SHARE, t, from->number, n_page, 0);
    end(log);
}
