/* room.c - registers, tables and copies: what the back end has besides weights. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "tiers/device_cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 256, ROW_ALIGN = 64 /* floats */ };

/* A place for n things of `each` bytes behind *at. */
static void *take(uint8_t *base, uint64_t *at, int64_t n, uint64_t each) {
    uint8_t *p = base ? base + *at : NULL;
    *at += ((uint64_t)n * each + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

/* What the ops of a layout take at most. */
typedef struct sizes {
    int64_t k;              /* of a product */
    int64_t n_head, d_head; /* of attention */
    int64_t embed, rope;    /* widths: of a look-up, of a rotation */
} sizes;

static sizes sizes_of(const layout *l) {
    const model *m = layout_model(l);
    sizes s = {1, 1, 8, 1, 1};
    for (int b = 0; b < layout_n_block(l); b++) {
        const program *p = &layout_block(l, b)->program;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            if (o->kind == OP_LINEAR)
                s.k = NUM_MAX(s.k, o->k);
            if (o->kind == OP_EMBED)
                s.embed = NUM_MAX(s.embed, o->n);
            if (o->kind == OP_ATTENTION) {
                s.n_head = NUM_MAX(s.n_head, o->u.attn.n_head);
                s.d_head = NUM_MAX(s.d_head, o->u.attn.d_head);
            }
        }
    }
    for (int t = 0; t < model_n_rope(m); t++)
        s.rope = NUM_MAX(s.rope, model_rope_dim(m, t));
    return s;
}

static uint64_t lay_out_rows(cuda *c, const backend_rows *rows, uint8_t *base) {
    const model *m = cuda_model(c);
    const sizes s = sizes_of(c->setup.layout);
    uint64_t at = 0;
    for (int r = 0; r < REG_COUNT; r++) {
        const int64_t n = r == REG_X ? rows->n_pass : r == REG_LOGITS ? rows->n_head : c->max_rows;
        c->ld[r] = num_round_up(model_reg_width(m, (reg)r), ROW_ALIGN);
        c->reg[r] = take(base, &at, n * c->ld[r], sizeof(float));
    }
    c->position = take(base, &at, rows->n_pass, sizeof *c->position);
    c->first_page = take(base, &at, rows->n_pass, sizeof *c->first_page);
    for (int t = 0; t < model_n_rope(m); t++)
        c->cos_sin[t] = take(base, &at, rows->n_pass * model_rope_dim(m, t), sizeof(float));
    for (int r = 0; r < REG_LOGITS; r++)
        if (model_reg_width(m, (reg)r) > 0)
            c->codes[r] = take(base, &at, 1, c->k->codes_bytes(model_reg_width(m, (reg)r)));
    c->linear_room = take(base, &at, 1, c->k->linear_scratch(CUDA_MAX_ROWS, s.k, c->setup.a16));
    if (c->k->wide_from() > 0 && c->max_rows >= c->k->wide_from())
        c->wide_room = take(base, &at, 1, c->k->wide_scratch(c->max_rows, s.k));
    c->best_ids = take(base, &at, rows->n_head * CUDA_MAX_TOP, sizeof *c->best_ids);
    c->best_logits = take(base, &at, rows->n_head * CUDA_MAX_TOP, sizeof *c->best_logits);
    c->best_token = take(base, &at, rows->n_head, sizeof *c->best_token);
    c->uniform = take(base, &at, rows->n_head, sizeof *c->uniform);
    c->best_room = take(base, &at, 1, c->k->sample_scratch(rows->n_head));
    const int64_t widest = fetches_widest(c);
    if (widest > 0) {
        const uint64_t each = c->k->residual_scratch(CUDA_MAX_FETCH, s.k, c->setup.residuals->k_chunk);
        c->fetch_room = take(base, &at, 1, each);
        c->part = take(base, &at, CUDA_MAX_FETCH * widest, sizeof(float));
    }
    c->attend_room = take(base, &at, 1, c->k->attend_scratch(CUDA_MAX_ROWS, s.n_head, s.d_head));
    return at;
}

static uint64_t lay_out_host(cuda *c, const layout *l, const backend_rows *rows, uint8_t *base) {
    const model *m = layout_model(l);
    const sizes s = sizes_of(l);
    uint64_t at = 0;
    c->stream_copy = take(base, &at, rows->n_pass * model_reg_width(m, REG_X), sizeof(float));
    c->logits = take(base, &at, rows->n_head * model_reg_width(m, REG_LOGITS), sizeof(float));
    c->embed = take(base, &at, rows->n_pass * s.embed, sizeof(float));
    c->looked_up = take(base, &at, s.embed, sizeof(float));
    c->angles = take(base, &at, model_n_rope(m) * rows->n_pass * s.rope, sizeof(float));
    c->inv_freq = take(base, &at, s.rope, sizeof(float));
    c->found_logits = take(base, &at, rows->n_head * CUDA_MAX_TOP, sizeof *c->found_logits);
    c->found_ids = take(base, &at, rows->n_head * CUDA_MAX_TOP, sizeof *c->found_ids);
    c->numbers = take(base, &at, 2 * rows->n_pass, sizeof *c->numbers);
    return at;
}

uint64_t room_host_bytes(const layout *l, const backend_rows *rows) {
    cuda none = {0};
    return lay_out_host(&none, l, rows, NULL);
}

static void set_max_rows(cuda *c, const backend_rows *rows) {
    c->max_rows = CUDA_MAX_ROWS;
    if (c->k->wide_from() > 0)
        c->max_rows = NUM_MIN(NUM_MAX(rows->n_pass, CUDA_MAX_ROWS), CUDA_MAX_WIDE);
}

uint64_t room_device_bytes(cuda *c, const backend_rows *rows) {
    set_max_rows(c, rows);
    /* a page of keys and values has a number in a list, which grows by halves */
    return lay_out_rows(c, rows, NULL) + rows->n_kept / DEVICE_CUDA_ALIGN * 2 * sizeof(int32_t) + 4096;
}

static void unpin(cuda *c) {
    if (c->pinned)
        c->k->unpin(c->host.at);
    c->pinned = false;
}

nib_status room_open(cuda *c, const backend_rows *rows, nib_error *err) {
    const layout *l = c->setup.layout;
    unpin(c);
    set_max_rows(c, rows);
    tier_region_close(&c->rows);
    tier_region_close(&c->host);
    NIB_TRY(tier_region_open(&c->rows, c->base.device, c->setup.ledger, NIB_OWNER_ACTIVATIONS,
                             lay_out_rows(c, rows, NULL), false, "activations on the GPU", err));
    NIB_TRY(tier_region_open(&c->host, device_host(), c->setup.ledger, NIB_OWNER_ACTIVATIONS,
                             lay_out_host(c, l, rows, NULL), false, "copies of activations", err));
    lay_out_rows(c, rows, c->rows.at);
    if (c->fetch_room) /* how often blocks have met */
        NIB_TRY(device_cuda_ok(c->base.device, c->k->fill(c->fetch_room, 0, CUDA_FETCH_HEAD, c->stream),
                               "room for residuals", err));
    NIB_TRY(device_cuda_ok(c->base.device,
                           c->k->fill(c->best_room, 0, (size_t)c->k->sample_scratch(rows->n_head), c->stream),
                           "room for logits", err));
    NIB_TRY(device_cuda_ok(c->base.device,
                           c->k->fill(c->uniform, 0, (size_t)rows->n_head * sizeof *c->uniform, c->stream),
                           "room for logits", err));
    lay_out_host(c, l, rows, c->host.at);
    /* Copies from and to there are then on their way when the call returns: a pass writes no place twice.
     * Where it cannot be, copies are slower. */
    c->pinned = c->k->pin(c->host.at, (size_t)c->host.bytes) == 0;
    return NIB_OK;
}

void room_close(cuda *c) {
    unpin(c);
    tier_region_close(&c->rows);
    tier_region_close(&c->pages);
    tier_region_close(&c->host);
    mem_free(c->page_list);
}

/* ---- tables of a pass ---- */

static nib_status send(const cuda *c, void *to, const void *from, uint64_t bytes, nib_error *err) {
    return c->base.device->kind->copy(c->base.device, DEVICE_LOAD, to, from, bytes, err);
}

static int64_t pages_of(const segment *s) {
    return (s->position + s->n_row - 1) / KV_BLOCK + 1;
}

/* A page as the kernels count it. */
static nib_status number_of(const cuda *c, const uint8_t *page, int32_t *out, nib_error *err) {
    const intptr_t apart = (intptr_t)((uintptr_t)page - (uintptr_t)c->origin) / DEVICE_CUDA_ALIGN;
    if (apart < INT32_MIN || apart > INT32_MAX)
        return nib_fail(err, NIB_E_DEVICE, "the GPU's pages of keys and values are too far apart");
    *out = (int32_t)apart;
    return NIB_OK;
}

static nib_status list_pages(cuda *c, int64_t n, nib_error *err) {
    int64_t at = 0;
    if (mem_grow((void **)&c->page_list, &c->max_page_list, (size_t)n, sizeof *c->page_list))
        return nib_fail_nomem(err, (size_t)n * sizeof *c->page_list, "a list of pages");
    for (int i = 0; i < c->pass.n_segment; i++) {
        const segment *s = &c->pass.segments[i];
        for (int64_t p = 0; p < pages_of(s); p++)
            NIB_TRY(number_of(c, s->kv->at[p], &c->page_list[at++], err));
    }
    return NIB_OK;
}

static nib_status tell_pages(cuda *c, nib_error *err) {
    int64_t n = 0, row = 0;
    for (int i = 0; i < c->pass.n_segment; i++) {
        const segment *s = &c->pass.segments[i];
        for (int64_t r = 0; r < s->n_row; r++)
            c->numbers[row++] = (int32_t)n;
        n += pages_of(s);
    }
    NIB_TRY(send(c, c->first_page, c->numbers, (uint64_t)row * sizeof *c->numbers, err));
    NIB_TRY(list_pages(c, n, err));
    if ((uint64_t)n * sizeof(int32_t) > c->pages.bytes) {
        tier_region_close(&c->pages);
        NIB_TRY(tier_region_open(&c->pages, c->base.device, c->setup.ledger, NIB_OWNER_TABLES,
                                 (uint64_t)c->max_page_list * sizeof(int32_t), false,
                                 "the lists of pages on the GPU", err));
    }
    return send(c, c->pages.at, c->page_list, (uint64_t)n * sizeof(int32_t), err);
}

/* `numbers` are those of the first pages of the rows, then the positions: both are on their way together. */
static nib_status tell_positions(const cuda *c, nib_error *err) {
    int32_t *const positions = c->numbers + c->base.rows.n_pass;
    int64_t row = 0;
    for (int i = 0; i < c->pass.n_segment; i++)
        for (int64_t r = 0; r < c->pass.segments[i].n_row; r++)
            positions[row++] = (int32_t)(c->pass.segments[i].position + r);
    return send(c, c->position, positions, (uint64_t)row * sizeof *positions, err);
}

/* In single precision, as the reference implementations do it. */
static float *fill_angles(const cuda *c, const segment *s, int table, float *out) {
    const int64_t half = model_rope_dim(cuda_model(c), table) / 2;
    float factor = 1;
    model_rope_freqs(cuda_model(c), table, s->length, c->inv_freq, &factor);
    for (int64_t r = 0; r < s->n_row; r++, out += 2 * half)
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)(s->position + r) * c->inv_freq[i];
            out[i] = cosf(angle) * factor;
            out[half + i] = sinf(angle) * factor;
        }
    return out;
}

static nib_status tell_angles(const cuda *c, int table, float *angles, float **next, nib_error *err) {
    float *end = angles;
    for (int i = 0; i < c->pass.n_segment; i++)
        end = fill_angles(c, &c->pass.segments[i], table, end);
    *next = end;
    return send(c, c->cos_sin[table], angles, (uint64_t)(end - angles) * sizeof *end, err);
}

nib_status room_tell(cuda *c, nib_error *err) {
    c->coded = NULL;
    NIB_TRY(tell_pages(c, err));
    NIB_TRY(tell_positions(c, err));
    float *angles = c->angles;
    for (int t = 0; t < model_n_rope(cuda_model(c)); t++)
        NIB_TRY(tell_angles(c, t, angles, &angles, err));
    return NIB_OK;
}
