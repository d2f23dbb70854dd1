/* workspace.c - the back end's memory besides weights: registers, tables and copies. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "kernels/kv_layout.h"
#include "memory/device_cuda.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 256, ROW_ALIGN = 64 /* floats */ };

/* Lays out n elements of `each` bytes at offset *at, which it advances. base NULL: only counts. */
static void *take(uint8_t *base, uint64_t *at, int64_t n, uint64_t each) {
    uint8_t *p = base ? base + *at : NULL;
    *at += ((uint64_t)n * each + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

/* Maximum sizes of a layout's ops. */
typedef struct sizes {
    int64_t k;                         /* maximum inputs of a product */
    int64_t n_head, d_head;            /* maximum sizes of attention */
    int64_t embed, rope;               /* widths of an embedding row, of a rotation */
    int64_t rows;                      /* bytes of a row of c->mem.expert_rows */
    int64_t few, wide, experts, codes; /* bytes of the memory for products of experts */
    int64_t added;                     /* floats of a row of c->mem.embed_there */
    int64_t wider;                     /* floats of a row of c->mem.wider */
    int64_t recurrent;                 /* bytes of cuda_recurrent.scratch */
} sizes;

/* Sizes of a mixture's ops for this many rows that go through a block together. */
static void experts_sizes(const cuda *c, const block *of, const op *o, int64_t n_row, sizes *s) {
    const int64_t n_used = o->u.experts.n_used;
    if (o->kind == OP_ROUTE) {
        s->few = NUM_MAX(s->few, cuda_expert_few_of(n_row * o->u.route.n_used, o->k, true).end);
        s->wide = NUM_MAX(s->wide, cuda_expert_wide_of(n_row * o->u.route.n_used, o->k).end);
    }
    if (o->kind != OP_EXPERTS)
        return;
    cuda_experts a = {.n_expert = o->u.experts.n_expert,
                      .n_used = n_used,
                      .n = o->u.experts.n,
                      .n_row = n_row,
                      .each = o->u.experts.each,
                      .sum = o->u.experts.sum,
                      .two = c->setup.a16};
    a.w[0] = (view){.k = o->u.experts.k, .format = of->weights[o->w].format};
    s->experts = NUM_MAX(s->experts, cuda_experts_scratch(&a));
    a.wide = c->k && c->k->has_wide() ? &a : NULL;
    s->experts = NUM_MAX(s->experts, cuda_experts_scratch(&a));
    if (!o->u.experts.each)
        s->rows = NUM_MAX(s->rows, cuda_expert_row(o->u.experts.k));
    if (!o->u.experts.sum)
        s->codes = NUM_MAX(s->codes, cuda_experts_codes(n_row, n_used, o->u.experts.n));
}

static sizes sizes_of(const cuda *c, const layout *l) {
    const model *m = layout_model(l);
    sizes s = {1, 1, 8, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0};
    for (int b = 0; b < layout_n_block(l); b++) {
        const program *p = &layout_block(l, b)->program;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            experts_sizes(c, layout_block(l, b), o, c->mem.max_rows, &s);
            if (o->kind == OP_LINEAR)
                s.k = NUM_MAX(s.k, o->k);
            if (o->kind == OP_CONV)
                s.recurrent =
                    NUM_MAX(s.recurrent, cuda_recurrent_scratch(c->mem.max_rows, o->n, o->u.rec.n_tap));
            if (o->kind == OP_EMBED)
                s.embed = NUM_MAX(s.embed, NUM_MAX(o->n, o->k));
            if (o->kind == OP_EMBED && o->adds && (i == 0 || p->ops[i - 1].kind != OP_EMBED))
                s.added = NUM_MAX(s.added, o->n);
            if (o->kind == OP_ATTENTION) {
                s.n_head = NUM_MAX(s.n_head, o->u.attn.n_head);
                s.d_head = NUM_MAX(s.d_head, kv_d_head(o->u.attn.d_head));
                if (kv_d_head(o->u.attn.d_head) != o->u.attn.d_head)
                    s.wider = NUM_MAX(s.wider, o->u.attn.n_head * kv_d_head(o->u.attn.d_head));
            }
        }
    }
    for (int t = 0; t < model_n_rope(m); t++)
        s.rope = NUM_MAX(s.rope, model_rope_dim(m, t));
    return s;
}

/* ---- tables of a pass for the kernels ----
 *
 * The tables are one piece of memory on the host and one on the device. Offsets depend on the number of rows
 * only. So a token takes one copy, and the addresses of repeated launches stay valid. The pages of all
 * segments are at the end, or in a region of their own if there are many. */

enum { TABLE_ALIGN = 64, TABLE_PAGES = 4096 };

static uint64_t part(uint64_t *at, int64_t n) {
    const uint64_t here = *at;
    *at += ((uint64_t)n * 4 + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    return here;
}

/* Byte offsets of the parts of `tables`. */
typedef struct table_parts {
    uint64_t pass, first_page, first_part, position, token, state, save, angles, pages, end;
} table_parts;
static table_parts table_parts_of(const model *m, int64_t n_row, int64_t n_page) {
    table_parts p;
    uint64_t at = 0;
    p.pass = part(&at, 2);
    p.first_page = part(&at, n_row);
    p.first_part = part(&at, n_row);
    p.position = part(&at, n_row);
    p.token = part(&at, n_row);
    p.state = part(&at, model_state_bytes(m) ? n_row : 0);
    p.save = part(&at, model_state_bytes(m) ? n_row : 0);
    p.angles = at;
    for (int t = 0; t < model_n_rope(m); t++)
        part(&at, n_row * model_rope_dim(m, t));
    p.pages = part(&at, n_page);
    p.end = at;
    return p;
}

/* Changes of logits also take one copy. The offset of the list depends on the number of rows only. */
static uint64_t changes_at(int64_t n_row) {
    return (uint64_t)num_round_up(n_row * (int64_t)sizeof(logit_row), TABLE_ALIGN);
}
static uint64_t changes_bytes(int64_t n_row) {
    return changes_at(n_row) + CUDA_MAX_CHANGES * sizeof(logit_change);
}

static bool uses(const cuda *c, int r) {
    return c->registers >> r & 1;
}

/* Bytes of c->mem.wide_scratch. */
static uint64_t wide_bytes(const cuda *c, int64_t k) {
    bool mixed = false;
    for (int b = 0; b < layout_n_block(c->setup.layout); b++)
        mixed = mixed || c->setup.act_bits[b] == NIB_ACT_AX;
    const uint64_t wide = c->k->has_wide() || c->batched ? c->k->wide_scratch(c->mem.max_rows, k) : 0;
    return mixed ? NUM_MAX(wide, c->k->mixed_scratch(c->mem.max_rows, k)) : wide;
}

static uint64_t lay_out_rows(cuda *c, const backend_rows *rows, uint8_t *base) {
    const model *m = cuda_model(c);
    const sizes s = sizes_of(c, c->setup.layout);
    uint64_t at = 0;
    for (int r = 0; r < model_n_reg(m); r++) {
        const int64_t n = r == REG_X        ? rows->n_pass
                          : r == REG_LOGITS ? rows->n_head
                          : uses(c, r)      ? c->mem.max_rows
                                            : 0;
        c->mem.ld[r] = num_round_up(model_reg_width(m, (reg)r), ROW_ALIGN);
        c->mem.reg[r] = take(base, &at, n * c->mem.ld[r], sizeof(float));
    }
    c->mem.tables = take(base, &at, 1, table_parts_of(m, rows->n_pass, TABLE_PAGES).end);
    for (int r = 0; r < model_n_reg(m); r++)
        if (r != REG_LOGITS && uses(c, r) && model_reg_width(m, (reg)r) > 0)
            c->mem.codes[r] = take(base, &at, 1, c->k->codes_bytes(model_reg_width(m, (reg)r)));
    c->mem.linear_scratch = take(base, &at, 1, c->k->linear_scratch(CUDA_MAX_ROWS, s.k, c->setup.a16));
    c->mem.wide_scratch = take(base, &at, 1, wide_bytes(c, s.k));
    if (s.added > 0)
        c->mem.embed_there = take(base, &at, c->mem.max_rows * s.added, sizeof(float));
    for (int i = 0; i < 4 && s.wider > 0; i++)
        c->mem.wider[i] = take(base, &at, c->mem.max_rows * s.wider, sizeof(float));
    if (s.recurrent > 0)
        c->mem.recurrent_scratch = take(base, &at, 1, (uint64_t)s.recurrent);
    if (s.experts > 0) {
        c->mem.expert_few = take(base, &at, 1, (uint64_t)s.few);
        c->mem.expert_wide = c->k->has_wide() ? take(base, &at, 1, (uint64_t)s.wide) : NULL;
        c->mem.expert_rows = take(base, &at, c->mem.max_rows, (uint64_t)s.rows);
        c->mem.expert_codes = take(base, &at, 1, (uint64_t)s.codes);
        c->mem.mail = take(base, &at, 1, CUDA_MAIL_BYTES);
        c->mem.routes_ended = take(base, &at, cuda_route_ended(c->mem.max_rows), sizeof *c->mem.routes_ended);
        c->mem.expert_scratch = take(base, &at, 1, (uint64_t)s.experts);
    }
    c->mem.best = take(base, &at, rows->n_head * CUDA_MAX_TOP * 2, sizeof *c->mem.best);
    c->mem.changes = take(base, &at, 1, changes_bytes(rows->n_pass));
    c->mem.best_scratch = take(base, &at, 1, c->k->sample_scratch(rows->n_head));
    if (estimates_bytes(c) > 0)
        c->mem.short_scratch = take(base, &at, 1, c->k->shortlist_scratch());
    const int64_t widest = fetches_widest(c);
    if (widest > 0) {
        const uint64_t each = c->k->residual_scratch(CUDA_MAX_FETCH, s.k, c->setup.residuals->max_k_chunk);
        c->mem.fetch_scratch = take(base, &at, 1, each);
        c->mem.part = take(base, &at, CUDA_MAX_FETCH * widest, sizeof(float));
    }
    c->mem.attend_scratch = take(base, &at, 1, c->k->attend_scratch(CUDA_MAX_ROWS, s.n_head, s.d_head));
    return at;
}

/* Width of the input of the head's product. */
static int64_t hidden_width(const layout *l) {
    return model_reg_width(layout_model(l),
                           probe_head_product(&layout_block(l, layout_n_block(l) - 1)->program)->in);
}

static uint64_t lay_out_host(cuda *c, const layout *l, const backend_rows *rows, uint8_t *base) {
    const model *m = layout_model(l);
    const sizes s = sizes_of(c, l);
    uint64_t at = 0;
    c->mem.stream_copy =
        take(base, &at, rows->n_pass * NUM_MAX(model_reg_width(m, REG_X), hidden_width(l)), sizeof(float));
    c->mem.logits = take(base, &at, rows->n_head * model_reg_width(m, REG_LOGITS), sizeof(float));
    c->mem.embed = take(base, &at, rows->n_pass * s.embed, sizeof(float));
    c->mem.looked_up = take(base, &at, s.embed, sizeof(float));
    const int64_t n_rope = model_n_rope(m);
    c->angles.width = s.rope;
    c->angles.inv_freq = take(base, &at, n_rope * s.rope, sizeof(float));
    c->angles.factor = take(base, &at, n_rope, sizeof(float));
    c->angles.ahead = take(base, &at, n_rope * CUDA_MAX_ROWS * s.rope, sizeof(float));
    c->mem.found = take(base, &at, rows->n_head * CUDA_MAX_TOP * 2, sizeof *c->mem.found);
    c->mem.tables_host = take(base, &at, 1, table_parts_of(m, rows->n_pass, TABLE_PAGES).end);
    c->mem.changes_host = take(base, &at, 1, changes_bytes(rows->n_pass));
    return at;
}

uint64_t gpu_workspace_host_bytes(const layout *l, const backend_rows *rows) {
    cuda none = {0};
    return lay_out_host(&none, l, rows, NULL);
}

static void set_max_rows(cuda *c, const backend_rows *rows) {
    c->mem.max_rows = CUDA_MAX_ROWS;
    if (c->k->has_wide())
        c->mem.max_rows = NUM_MIN(NUM_MAX(rows->n_pass, CUDA_MAX_ROWS), CUDA_MAX_WIDE);
}

uint64_t gpu_workspace_device_bytes(cuda *c, const backend_rows *rows) {
    set_max_rows(c, rows);
    /* a KV page has a number in a list, which grows by half of its length; with parts it has two */
    return lay_out_rows(c, rows, NULL) + rows->n_kept / DEVICE_CUDA_ALIGN * 3 * sizeof(int32_t) + 4096;
}

static void unpin(cuda *c) {
    if (c->mem.pinned)
        c->k->unpin(c->mem.host.at);
    c->mem.pinned = false;
}

nib_status gpu_workspace_open(cuda *c, const backend_rows *rows, nib_error *err) {
    const layout *l = c->setup.layout;
    unpin(c);
    set_max_rows(c, rows);
    c->replay.before = NULL; /* all addresses change */
    memory_region_close(&c->mem.rows);
    memory_region_close(&c->mem.host);
    NIB_TRY(memory_region_open(&c->mem.rows, c->base.device, c->setup.ledger, NIB_OWNER_ACTIVATIONS,
                               lay_out_rows(c, rows, NULL), false, "activations on the GPU", err));
    NIB_TRY(memory_region_open(&c->mem.host, device_host(), c->setup.ledger, NIB_OWNER_ACTIVATIONS,
                               lay_out_host(c, l, rows, NULL), false, "copies of activations", err));
    lay_out_rows(c, rows, c->mem.rows.at);
    if (c->mem.fetch_scratch) /* counters of barriers */
        NIB_TRY(device_cuda_ok(c->base.device,
                               c->k->fill(c->mem.fetch_scratch, 0, CUDA_FETCH_HEAD, c->stream),
                               "memory for residuals", err));
    NIB_TRY(device_cuda_ok(
        c->base.device,
        c->k->fill(c->mem.best_scratch, 0, (size_t)c->k->sample_scratch(rows->n_head), c->stream),
        "memory for logits", err));
    if (c->mem.routes_ended)
        NIB_TRY(device_cuda_ok(
            c->base.device,
            c->k->fill(c->mem.routes_ended, 0,
                       (size_t)cuda_route_ended(c->mem.max_rows) * sizeof *c->mem.routes_ended, c->stream),
            "memory for routers", err));
    if (c->mem.short_scratch)
        NIB_TRY(device_cuda_ok(c->base.device,
                               c->k->fill(c->mem.short_scratch, 0, CUDA_SHORT_HEAD, c->stream),
                               "memory for logits", err));
    lay_out_host(c, l, rows, c->mem.host.at);
    angles_open(c);
    /* Copies from and to page-locked memory are asynchronous, which is safe because a pass writes no address
     * twice. Without page-locking copies are slower. */
    c->mem.pinned = c->k->pin(c->mem.host.at, (size_t)c->mem.host.bytes) == 0;
    return NIB_OK;
}

void gpu_workspace_close(cuda *c) {
    unpin(c);
    memory_region_close(&c->mem.rows);
    memory_region_close(&c->mem.pages);
    memory_region_close(&c->mem.host);
    mem_free(c->mem.page_list);
}

/* ---- tables of a pass ---- */

static nib_status send(const cuda *c, void *to, const void *from, uint64_t bytes, nib_error *err) {
    return spans_copy(c, "copy tables", DEVICE_LOAD, to, from, bytes, err);
}

/* Number of the segment's KV pages after its rows are written; its parts are as many entries. */
static int64_t pages_of_segment(const segment *s) {
    return (s->position + s->n_row - 1) / KV_BLOCK + 1;
}

/* A page's number for the kernels. */
static nib_status number_of(const cuda *c, const uint8_t *page, int32_t *out, nib_error *err) {
    const intptr_t apart = (intptr_t)((uintptr_t)page - (uintptr_t)c->now.origin) / DEVICE_CUDA_ALIGN;
    if (apart < INT32_MIN || apart > INT32_MAX)
        return nib_fail(err, NIB_E_DEVICE, "the GPU's pages of keys and values are too far apart");
    *out = (int32_t)apart;
    return NIB_OK;
}

/* Whether the pass's keys and values are codes (kv8, kv4). */
static bool is_coded(const cuda *c) {
    return kv_is_coded(kv_pool_paging(c->now.pass.segments->kv->pool)->formats.type);
}

uint8_t *gpu_workspace_origin(const cuda *c) {
    const kv_table *kv = c->now.pass.segments->kv;
    return kv->state.at  ? kv_table_states(kv)
           : is_coded(c) ? kv->newest.at
           : kv->at[0]   ? kv->at[0]
                         : kv->part_at[kv->n_part - 1]; /* all layers have windows */
}

/* With codes: the page of the newest block, which is listed before the others (cuda_kv). */
static int64_t newest_of(const cuda *c) {
    return is_coded(c);
}

/* The lists of each segment: its pages; with windows its parts too. */
static int lists_of(const cuda *c) {
    return kv_pool_paging(c->now.pass.segments->kv->pool)->window > 0 ? 2 : 1;
}

/* Lists pages or parts at `at` of a segment, of which [first, end) are read. */
static nib_status list_each(const cuda *c, const segment *s, uint8_t *const *at, int64_t first, int64_t end,
                            int32_t **list, nib_error *err) {
    if (is_coded(c))
        NIB_TRY(number_of(c, s->kv->newest.at, (*list)++, err));
    for (int64_t p = 0; p < pages_of_segment(s); p++)
        NIB_TRY(number_of(c, p >= first && p < end && at[p] ? at[p] : c->now.origin, (*list)++, err));
    return NIB_OK;
}

/* Lists the pages of all segments. An incomplete page has no codes yet, and kernels do not read them. */
static nib_status list_pages(const cuda *c, int32_t *list, nib_error *err) {
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const segment *s = &c->now.pass.segments[i];
        const kv_table *kv = s->kv;
        const int64_t n = kv_table_pages(kv_pool_paging(kv->pool)->formats, s->position + s->n_row);
        NIB_TRY(list_each(c, s, kv->at, 0, n, &list, err));
        if (lists_of(c) > 1)
            NIB_TRY(list_each(c, s, kv->part_at, kv_table_first_part(kv, s->position), n, &list, err));
    }
    return NIB_OK;
}

/* Sends many page numbers to a region of their own, which grows. */
static nib_status send_pages(cuda *c, int64_t n, nib_error *err) {
    if (mem_grow((void **)&c->mem.page_list, &c->mem.max_page_list, (size_t)n, sizeof *c->mem.page_list))
        return nib_fail_nomem(err, (size_t)n * sizeof *c->mem.page_list, "a list of pages");
    NIB_TRY(list_pages(c, c->mem.page_list, err));
    if ((uint64_t)n * sizeof(int32_t) > c->mem.pages.bytes) {
        memory_region_close(&c->mem.pages);
        NIB_TRY(memory_region_open(&c->mem.pages, c->base.device, c->setup.ledger, NIB_OWNER_TABLES,
                                   (uint64_t)c->mem.max_page_list * sizeof(int32_t), false,
                                   "the lists of pages on the GPU", err));
    }
    c->mem.page_table = c->mem.pages.at;
    return send(c, c->mem.pages.at, c->mem.page_list, (uint64_t)n * sizeof(int32_t), err);
}

static void fill_tables(cuda *c, uint64_t at, int64_t n_row) {
    for (int t = 0; t < model_n_rope(cuda_model(c)); t++) {
        const uint64_t here = part(&at, n_row * model_rope_dim(cuda_model(c), t));
        c->mem.cos_sin[t] = (float *)(void *)(c->mem.tables + here);
        angles_fill(c, t, (float *)(void *)(c->mem.tables_host + here));
    }
}

/* The numbers of a segment's recurrent state, and of its copies. */
static nib_status number_states(const cuda *c, const segment *s, int32_t *state, int32_t *save,
                                nib_error *err) {
    int32_t number = 0, copy = CUDA_NO_STATE;
    NIB_TRY(number_of(c, s->kv->state.at, &number, err));
    if (s->kv->save_to)
        NIB_TRY(number_of(c, s->kv->save_to, &copy, err));
    for (int64_t r = 0; r < s->n_row; r++) {
        state[r] = number;
        save[r] = s->kv->save_to && s->position + r + 1 == s->kv->save_at ? copy : CUDA_NO_STATE;
    }
    return NIB_OK;
}

static nib_status fill_states(cuda *c, const table_parts *p, nib_error *err) {
    int32_t *const state = (int32_t *)(void *)(c->mem.tables_host + p->state);
    int32_t *const save = (int32_t *)(void *)(c->mem.tables_host + p->save);
    if (!model_state_bytes(cuda_model(c)))
        return NIB_OK;
    c->mem.state = (int32_t *)(void *)(c->mem.tables + p->state);
    c->mem.save = (int32_t *)(void *)(c->mem.tables + p->save);
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const segment *s = &c->now.pass.segments[i];
        NIB_TRY(number_states(c, s, state + s->row, save + s->row, err));
    }
    return NIB_OK;
}

nib_status gpu_workspace_send_tables(cuda *c, nib_error *err) {
    int64_t n_row = 0, n_page = 0, row = 0, page = 0;
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        n_row += c->now.pass.segments[i].n_row;
        n_page += lists_of(c) * (newest_of(c) + pages_of_segment(&c->now.pass.segments[i]));
    }
    const table_parts p = table_parts_of(cuda_model(c), n_row, n_page <= TABLE_PAGES ? n_page : 0);
    int32_t *const first_page = (int32_t *)(void *)(c->mem.tables_host + p.first_page);
    int32_t *const first_part = (int32_t *)(void *)(c->mem.tables_host + p.first_part);
    int32_t *const position = (int32_t *)(void *)(c->mem.tables_host + p.position);
    int32_t *const token = (int32_t *)(void *)(c->mem.tables_host + p.token);
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const segment *s = &c->now.pass.segments[i];
        const int64_t each = newest_of(c) + pages_of_segment(s);
        page += newest_of(c);
        for (int64_t r = 0; r < s->n_row; r++, row++) {
            first_page[row] = (int32_t)page;
            first_part[row] = (int32_t)(page + each);
            position[row] = (int32_t)(s->position + r);
            token[row] = s->tokens ? s->tokens[r] : -1;
        }
        page += lists_of(c) * each - newest_of(c);
    }
    c->now.coded = NULL;
    reduce_number(c, (int64_t *)(void *)(c->mem.tables_host + p.pass),
                  (int64_t *)(void *)(c->mem.tables + p.pass));
    c->mem.first_page = (int32_t *)(void *)(c->mem.tables + p.first_page);
    c->mem.first_part = (int32_t *)(void *)(c->mem.tables + p.first_part);
    c->mem.position = (int32_t *)(void *)(c->mem.tables + p.position);
    c->mem.token = (int32_t *)(void *)(c->mem.tables + p.token);
    c->mem.page_table = (int32_t *)(void *)(c->mem.tables + p.pages);
    NIB_TRY(fill_states(c, &p, err));
    fill_tables(c, p.angles, n_row);
    if (n_page > TABLE_PAGES)
        NIB_TRY(send_pages(c, n_page, err));
    else
        NIB_TRY(list_pages(c, (int32_t *)(void *)(c->mem.tables_host + p.pages), err));
    return send(c, c->mem.tables, c->mem.tables_host, p.end, err);
}

nib_status gpu_workspace_send_changes(cuda *c, nib_error *err) {
    const logit_processor *by = c->now.pass.processor;
    int64_t n_row = 0, n = 0;
    c->mem.change_rows = NULL;
    if (!by)
        return NIB_OK;
    for (int i = 0; i < c->now.pass.n_segment; i++)
        n_row += c->now.pass.segments[i].n_row - c->now.pass.segments[i].head_row;
    const uint64_t list_at = changes_at(n_row);
    logit_row *row = (logit_row *)(void *)c->mem.changes_host;
    logit_change *const list = (logit_change *)(void *)(c->mem.changes_host + list_at);
    for (int i = 0; i < c->now.pass.n_segment; i++)
        for (int64_t r = c->now.pass.segments[i].head_row; r < c->now.pass.segments[i].n_row; r++, row++) {
            row->first = (int32_t)n;
            row->n = (int32_t)by->changes(by->user, i, r, list + n, row);
            n += row->n;
        }
    c->mem.change_rows = (logit_row *)(void *)c->mem.changes;
    c->mem.change_list = (logit_change *)(void *)(c->mem.changes + list_at);
    return send(c, c->mem.changes, c->mem.changes_host, list_at + (uint64_t)n * sizeof *list, err);
}
