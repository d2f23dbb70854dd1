/* fakecuda_attend.c - the fake table's attention: rows are gathered into a cache as the reference has it. It
 * notes which keys a launch wrote, and refuses a launch that might read them too early. */
#include "support/fakecuda_parts.h"

#include "base/num.h"
#include "kernels/kv_layout.h"

#include <stdlib.h>
#include <string.h>

size_t fake_attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head) {
    return (size_t)(n_row * n_head * d_head) * sizeof(float);
}

static const int32_t *pages_of(const cuda_attend *a, int64_t row) {
    return (const int32_t *)real(a->pages) + ((const int32_t *)real(a->first_page))[row];
}

/* A cached row of d halves; with codes only those of the newest block are halves. */
static uint16_t *cached(const cuda_attend *a, bool is_value, int64_t row, int64_t head, int64_t position) {
    const int64_t page = position / CUDA_PAGE, at = (head * CUDA_PAGE + position % CUDA_PAGE) * a->kv.d_head;
    if (a->kv.code_bits)
        return (uint16_t *)real(is_value ? a->kv.recent_v : a->kv.recent_k) +
               pages_of(a, row)[-1] * a->kv.page + at;
    return (uint16_t *)real(is_value ? a->kv.v : a->kv.k) + pages_of(a, row)[page] * a->kv.page + at;
}

static int32_t position_of(const cuda_attend *a, int64_t row) {
    return ((const int32_t *)real(a->position))[row];
}

static void rotate(const cuda_attend *a, int64_t row, float *x, int64_t n_head) {
    const float *table = real(a->cos_sin);
    if (table)
        kernels_table()->rope(a->style, x, n_head, a->kv.d_head, a->n_rot,
                              table + (a->cos_sin_by_row ? row : position_of(a, row)) * a->n_rot);
}

/* RMSNorm of heads, where attention has it. */
static void norm_heads(const cuda_attend *a, const float *w, float *x, int64_t n_head) {
    if (w)
        kernels_table()->norm(NORM_RMS, x, real(w), NULL, x, n_head * a->kv.d_head, n_head, false,
                              a->norm_eps);
}

/* Whether row `other` is in the launch, and of the same sequence. */
static bool is_sibling(const cuda_attend *a, int64_t row, int64_t other) {
    const int32_t *first = real(a->first_page);
    return other >= 0 && other < a->n_row && first[other] == first[row];
}

static void store_row(const cuda_attend *a, int64_t row) {
    const int64_t d = a->kv.d_head, n = a->kv.n_kv_head * d;
    const float *v = a->kv.v ? (const float *)real(a->v) + row * a->ldv : NULL;
    float *k = malloc((size_t)n * sizeof *k);
    memcpy(k, (const float *)real(a->k) + row * a->ldk, (size_t)n * sizeof *k);
    norm_heads(a, a->k_norm, k, a->kv.n_kv_head);
    rotate(a, row, k, a->kv.n_kv_head);
    for (int64_t at = 0; at < n; at += d) {
        uint16_t *to_k = cached(a, false, row, at / d, position_of(a, row)),
                 *to_v = v ? cached(a, true, row, at / d, position_of(a, row)) : NULL;
        for (int64_t i = 0; i < d; i++) {
            to_k[i] = half_from_float(k[at + i]);
            if (v)
                to_v[i] = half_from_float(v[at + i]);
        }
    }
    if (fake.n_fresh < MAX_FRESH)
        fake.fresh[fake.n_fresh++] = cached(a, false, row, 0, position_of(a, row));
    free(k);
}

int fake_store(const cuda_attend *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(attend, fake_store);
    for (int64_t row = 0; row < a->n_row; row++)
        if (!a->kv.code_bits ||
            !is_sibling(a, row, row + CUDA_PAGE - position_of(a, row) % CUDA_PAGE)) /* it has that place */
            store_row(a, row);
    return 0;
}

/* The first position that the row reads. Pages before its window are not those of its layer. */
static int64_t window_begin(const cuda_attend *a, int64_t row) {
    return a->window ? NUM_MAX(position_of(a, row) - a->window + 1, 0) : 0;
}

/* Whether a launch that may still run writes keys or values that the row reads. */
static bool may_be_early(const cuda_attend *a, int64_t row) {
    const int32_t end = position_of(a, row);
    const int64_t block = a->kv.code_bits ? end / CUDA_PAGE * CUDA_PAGE : 0;
    for (int64_t p = NUM_MAX(block, window_begin(a, row)); fake.n_fresh && p < end; p++) {
        const uint16_t *key = cached(a, false, row, 0, p);
        for (size_t i = 0; i < fake.n_fresh; i++)
            if (fake.fresh[i] == key)
                return true;
    }
    return false;
}

/* A cache in the reference's form, with blocks of codes at the places that the launch gives: the fake stores
 * them in the host's order. */
typedef struct reference {
    kv_view kv;
    uint8_t **pages, *halves;
} reference;
static reference reference_open(const cuda_attend *a, int64_t row) {
    const int64_t d = a->kv.d_head, n = position_of(a, row) / KV_BLOCK + 1;
    uint64_t half = 0;
    kv_page_bytes(TYPE_F16, a->kv.n_kv_head, d, &half);
    half = (half + 63) / 64 * 64;
    const size_t bytes = (size_t)n * 2 * half;
    reference r = {.pages = malloc((size_t)n * sizeof *r.pages), .halves = aligned_alloc(64, bytes)};
    memset(r.halves, 0, bytes);
    r.kv = (kv_view){.pages = r.pages,
                     .value_at = a->kv.v ? (int64_t)half : 0,
                     .shared = !a->kv.v,
                     .type = TYPE_F16,
                     .n_kv_head = a->kv.n_kv_head,
                     .d_head = d};
    for (int64_t i = 0; i < n; i++)
        r.pages[i] = r.halves + (size_t)i * 2 * half;
    if (!a->kv.code_bits)
        return r;
    r.kv.type = a->kv.code_bits == 8 ? TYPE_KV8 : TYPE_KV4;
    r.kv.value_at = a->kv.v ? (uint8_t *)a->kv.v - (uint8_t *)a->kv.k : 0;
    r.kv.recent = r.halves;
    r.kv.recent_value_at = a->kv.v ? (int64_t)half : 0;
    for (int64_t i = 0; i < n; i++)
        r.pages[i] = (uint8_t *)real(a->kv.k) + 2 * pages_of(a, row)[i] * a->kv.page;
    return r;
}
static void reference_close(reference *r) {
    free(r->pages), free(r->halves);
}

/* The positions in halves that rows [first, row] of a sequence read; with `by_rows` positions of the launch's
 * rows are taken from the rows. */
static void gather(const cuda_attend *a, int64_t first, int64_t row, bool by_rows, const kv_view *to) {
    const kernel_table *t = kernels_table();
    const int64_t d = a->kv.d_head, n = a->kv.n_kv_head * d, end = position_of(a, row);
    float *floats = malloc((size_t)n * sizeof *floats);
    for (int64_t p = a->kv.code_bits ? end / KV_BLOCK * KV_BLOCK : window_begin(a, first); p <= end; p++)
        for (int is_value = 0; is_value < (a->kv.v ? 2 : 1); is_value++) {
            const int64_t from = row - (end - p);
            const bool of_row = by_rows && is_sibling(a, row, from);
            if (of_row)
                memcpy(floats,
                       is_value ? (const float *)real(a->v) + from * a->ldv
                                : (const float *)real(a->k) + from * a->ldk,
                       (size_t)n * sizeof *floats);
            if (of_row && !is_value)
                rotate(a, from, floats, a->kv.n_kv_head);
            for (int64_t at = 0; at < n && !of_row; at += d) {
                const uint16_t *halves = cached(a, is_value, row, at / d, p);
                for (int64_t i = 0; i < d; i++)
                    floats[at + i] = half_to_float(halves[i]);
            }
            t->kv_store(to, is_value, p, floats);
        }
    free(floats);
}

/* Converts the block that the row completes to codes. */
static void pack_row(const cuda_attend *a, int64_t row, bool by_rows) {
    reference r = reference_open(a, row);
    gather(a, row, row, by_rows, &r.kv);
    const int64_t kinds = a->kv.v ? 2 : 1; /* keys, and values */
    for (int64_t i = 0; i < kinds * a->kv.n_kv_head; i++)
        kernels_table()->kv_pack(&r.kv, i % kinds, i / kinds, position_of(a, row) / KV_BLOCK);
    reference_close(&r);
}
static bool ends_block(const cuda_attend *a, int64_t row) {
    return a->kv.code_bits && position_of(a, row) % CUDA_PAGE == CUDA_PAGE - 1;
}

int fake_pack(const cuda_attend *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(pack, fake_pack);
    if (!a->kv.code_bits)
        return fake_misuse("there is nothing to pack");
    for (int64_t row = 0; row < a->n_row; row++)
        if (ends_block(a, row))
            pack_row(a, row, true);
    return 0;
}

static void attend_row(const cuda_attend *a, int64_t row, const kv_view *kv) {
    const int64_t d = a->kv.d_head, nq = a->n_head * d;
    void *scratch = aligned_alloc(64, (attend_scratch_bytes(d, true) + 63) / 64 * 64);
    float *q = malloc((size_t)nq * sizeof *q);
    memcpy(q, (const float *)real(a->q) + row * a->ldq, (size_t)nq * sizeof *q);
    norm_heads(a, a->q_norm, q, a->n_head);
    rotate(a, row, q, a->n_head);
    const attend_args args = {.kv = *kv,
                              .q = q,
                              .out = (float *)real(a->out) + row * a->ldo,
                              .n_row = 1,
                              .first_position = position_of(a, row),
                              .n_head = a->n_head,
                              .window = a->window,
                              .chunked = a->chunked,
                              .scale = a->scale,
                              .softcap = a->softcap,
                              .alibi_max_bias = a->alibi_max_bias,
                              .alibi_scale = a->alibi_scale,
                              .sinks = a->sinks ? real(a->sinks) : NULL,
                              .scratch = scratch};
    kernels_table()->attend(&args, 0, a->n_head, 0, 1);
    free(scratch), free(q);
}

/* Neighbouring rows of a sequence share the cache of the last of them, unless a block of codes begins in it.
 */
static void attend_rows(const cuda_attend *a, bool by_rows) {
    for (int64_t row = 0, end; row < a->n_row; row = end) {
        for (end = row + 1; !a->kv.code_bits && is_sibling(a, row, end) &&
                            position_of(a, end) == position_of(a, end - 1) + 1;)
            end++;
        reference r = reference_open(a, end - 1);
        gather(a, row, end - 1, by_rows, &r.kv);
        for (int64_t i = row; i < end; i++)
            attend_row(a, i, &r.kv);
        reference_close(&r);
    }
}

int fake_attend(const cuda_attend *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(attend, fake_attend);
    if (a->n_row > CUDA_MAX_ROWS || ((!a->k || !a->kv.v) && !a->stored) || a->kv.d_head % 8)
        return fake_misuse("attention of too many rows, of keys that are not there, or of odd heads");
    if (a->q_norm && (!cuda_attend_norms(a) || !a->k_norm))
        return fake_misuse("attention cannot norm its heads");
    if (!a->kv.v && (a->cos_sin || a->leaves.data || a->kv.n_kv_head != 1))
        return fake_misuse("attention of shared keys rotates, leaves codes, or has several heads of them");
    for (int64_t row = 1; row < a->n_row && a->kv.code_bits; row++)
        if (is_sibling(a, row, row - 1) && position_of(a, row) % CUDA_PAGE == 0)
            return fake_misuse("attention of rows in two blocks of a sequence");
    for (int64_t row = 0; row < a->n_row && !a->stored; row++)
        store_row(a, row);
    for (int64_t row = 0; row < a->n_row && !a->stored; row++)
        if (may_be_early(a, row))
            return fake_misuse("attention may read keys before they are written");
    attend_rows(a, false);
    for (int64_t row = 0; row < a->n_row && !a->stored; row++)
        if (ends_block(a, row))
            pack_row(a, row, false);
    if (a->leaves.data &&
        (a->n_row > FAKE_LEFT_ROWS || (a->n_row > 1 && a->leaves.group != 32) || a->kv.d_head % 32))
        return fake_misuse("attention cannot leave codes");
    if (a->leaves.data)
        fake_leave(&a->leaves, real(a->out), a->ldo, a->n_row, a->n_head * a->kv.d_head, false);
    return 0;
}

int fake_attend_prompt(const cuda_attend *a, cuda_stream s) {
    LAUNCH(s);
    for (int64_t row = 1; row < a->n_row; row++)
        if (((const int32_t *)real(a->first_page))[row] != *(const int32_t *)real(a->first_page) ||
            position_of(a, row) != position_of(a, row - 1) + 1)
            return fake_misuse("a prompt's rows do not stand together");
    if (!a->stored)
        return fake_misuse("a prompt's keys are not stored");
    attend_rows(a, a->kv.code_bits > 0);
    for (int64_t row = 0; row < a->n_row; row++) {
        float *out = (float *)real(a->out) + row * a->ldo;
        for (int64_t i = 0; fake.prompts_differ && i < a->n_head * a->kv.d_head; i++)
            out[i] *= 1.0009765625f;
    }
    fake.n_prompt += a->n_row;
    return 0;
}

/* ---- copies of pages ---- */

int fake_move(const cuda_move *a, cuda_stream s) {
    LAUNCH(s);
    if (fake.recording)
        return fake_misuse("pages that move are recorded");
    if ((uintptr_t)a->pairs % 8)
        return fake_misuse("pairs of pages are not aligned");
    fake.n_fresh = 0;
    fake.n_moved += a->n_page;
    fake_move_later(a, s);
    return 0;
}

/* Codes have the host's order on both sides. */
static void move_codes(const cuda_move *a) {
    const type_id type = a->here.code_bits == 8 ? TYPE_KV8 : TYPE_KV4;
    const size_t bytes = (size_t)(a->here.n_kv_head * kv_block_bytes(type, a->here.d_head));
    const int64_t kinds = a->here.v ? 2 : 1;
    for (int64_t i = 0; i < kinds * a->n_page; i++) {
        const int32_t *pair = (const int32_t *)real(a->pairs) + i / kinds * 2;
        uint16_t *here = (uint16_t *)real(i % kinds ? a->here.v : a->here.k) + pair[0] * a->here.page;
        uint16_t *host = (uint16_t *)real(i % kinds ? a->host_v : a->host_k) + pair[1] * a->here.page;
        memcpy(a->up ? here : host, a->up ? host : here, bytes);
    }
}

void fake_move_now(const cuda_move *a) {
    if (a->here.code_bits) {
        move_codes(a);
        return;
    }
    const int64_t d = a->here.d_head, run = CUDA_PAGE * d;
    for (int64_t i = 0; i < a->n_page; i++) {
        const int32_t *pair = (const int32_t *)real(a->pairs) + 2 * i;
        for (int64_t at = 0; at < a->here.n_kv_head * run; at++) {
            const int64_t head = at / run * run, position = at % run / d;
            const int64_t on_host = pair[1] * a->here.page, here = pair[0] * a->here.page + at;
            uint16_t *k = (uint16_t *)real(a->here.k) + here;
            uint16_t *host_k = (uint16_t *)real(a->host_k) + on_host + head + kv_key_at(d, position, at % d);
            *(a->up ? k : host_k) = *(a->up ? host_k : k);
            if (!a->here.v)
                continue;
            uint16_t *v = (uint16_t *)real(a->here.v) + here;
            uint16_t *host_v = (uint16_t *)real(a->host_v) + on_host + at;
            *(a->up ? v : host_v) = *(a->up ? host_v : v);
        }
    }
}
