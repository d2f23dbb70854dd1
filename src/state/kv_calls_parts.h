/* kv_calls_parts.h - the records of kv_calls.c, which kv_repeat.c reads. Ranks run the same program, so a
 * record has the program's own layout. */
#ifndef NIB_STATE_KV_CALLS_PARTS_H
#define NIB_STATE_KV_CALLS_PARTS_H

#include "state/kv_calls.h"

typedef enum kv_call_kind {
    KV_CALL_POOL, /* a new pool: type, slides, kept, rows; tokens: the layers' types, if they differ */
    KV_CALL_RESERVE,
    KV_CALL_UNRESERVE,
    KV_CALL_OPEN, /* n_ctx, whether reserved, its pages and parts */
    KV_CALL_CLOSE,
    KV_CALL_KEEP,
    KV_CALL_REACH, /* first, end, whether generated */
    KV_CALL_FILL,
    KV_CALL_SETTLE,
    KV_CALL_ADVANCE,
    KV_CALL_LEARN, /* tokens from the first position's page on */
    KV_CALL_ADOPT,
    KV_CALL_SHARE, /* the other table's number, pages */
    KV_CALL_COUNT
} kv_call_kind;

typedef struct kv_call {
    int32_t kind, pool, table, unused;
    int64_t arg[4];
    int64_t result;  /* KEEP and ADOPT: the position */
    int64_t n_token; /* that follow the record */
} kv_call;

/* Bytes of a record and its tokens: records begin at multiples of 8. */
static inline uint64_t kv_call_bytes(const kv_call *call) {
    return sizeof *call + ((uint64_t)call->n_token * sizeof(int32_t) + 7) / 8 * 8;
}

#endif
