/* ops.c - a block's program for one row, op by op. */
#include "exec/acts.h"
#include "exec/check/check.h"

#include "base/mem.h"
#include "base/num.h"
#include "exec/check/memory.h"
#include "exec/entries.h"
#include "exec/recurrent.h"
#include "kernels/act8.h"
#include "kernels/entries.h"
#include "kernels/route.h"
#include "kernels/row_op.h"
#include "model/page_layout.h"

#include <math.h>
#include <string.h>

/* A row that goes through the program. */
typedef struct walk {
    check *c;
    const segment *of;
    int64_t row;      /* number of the row in the pass */
    int64_t position; /* position in its sequence */
    int64_t run_row;  /* number of the row in the run */
    bool is_head;
    int act_bits;
} walk;

static float *at(const walk *w, reg r) {
    const int64_t row = r == REG_X ? w->row : r == REG_LOGITS && w->is_head ? w->run_row : 0;
    return w->c->reg[r] + row * check_width(w->c, r);
}

static const float *vector(const walk *w, int index) {
    return index < 0 ? NULL : w->c->views[index].data;
}

/* ---- look-ups ---- */

/* Looks up row i of op o's table. If the table is not in the device's memory, the host looks it up, and has
 * memory for one row. */
static nib_status look_up(const walk *w, const op *o, int64_t i, nib_error *err) {
    const check *c = w->c;
    if (c->views[o->w].data) {
        pack_read_row(&c->views[o->w], i, c->row);
        return NIB_OK;
    }
    NIB_TRY(pager_read_row(c->run.pager, c->run.visit.block, o->w, i, c->seen, err));
    memcpy(c->row, c->seen, (size_t)(o->kind == OP_EMBED ? NUM_MAX(o->n, o->k) : o->n) * sizeof *c->row);
    return NIB_OK;
}

static nib_status embed(const walk *w, const op *o, nib_error *err) {
    const kernel_table *k = w->c->ref;
    float *out = at(w, o->out);
    if (o->kind == OP_EMBED_POS) {
        NIB_TRY(look_up(w, o, w->position + o->u.num.offset, err));
        k->add(out, w->c->row, 1, out, o->n);
        return NIB_OK;
    }
    const int32_t token = w->of->tokens[w->position - w->of->position];
    NIB_TRY(look_up(w, o, token < w->c->views[o->w].n ? token : 0, err));
    const float *row = w->c->row + o->u.num.offset;
    if (o->adds)
        k->add(out, row, o->u.num.value, out, o->n);
    else
        k->scale(row, o->u.num.value, out, o->n);
    return NIB_OK;
}

/* ---- products ---- */

/* y = x . w^T + bias for one quantized row. */
static void multiply(const walk *w, const view *v, act_format f, const float *bias, float *y) {
    const linear_args a = {.w = v,
                           .q = {w->c->codes, 1, v->k, f},
                           .bias = bias,
                           .y = y,
                           .ldy = v->n,
                           .n_row = 1,
                           .scratch = w->c->scratch};
    linear_run(w->c->ref, &a, 0, v->n);
}

static void add_product(const walk *w, const view *v, act_format f, float *y) {
    multiply(w, v, f, NULL, w->c->part);
    w->c->ref->add(y, w->c->part, 1, y, v->n);
}

/* One product: a matrix, its input and its output. */
static const weight *weight_of(const walk *w, const op *o) {
    return &layout_block(w->c->setup.layout, w->c->run.visit.block)->weights[o->w];
}

typedef struct one_product {
    const weight *of;
    const view *v;
    const float *bias, *x;
    float *y;
    bool adds;
} one_product;

/* A product with quantized activations. With 4 and 8 bits, outliers count as zeros and each adds its column.
 * With 16 bits, a second quantized row has the residual of the first. */
static void packed_product(const walk *w, const one_product *p) {
    check *c = w->c;
    const view *v = p->v;
    const act_format f = act_format_of(p->of, &v->format, w->act_bits);
    const float *x = p->x;
    if (f.rotated) {
        act_rotate(f, x, v->k, c->residual);
        x = c->residual;
    }
    outlier outliers[ACT_OUTLIERS];
    const int n_outlier =
        w->act_bits == 16 ? 0 : act_extract_outliers(c->ref, f.bits, x, v->k, c->residual, outliers);
    c->ref->act_quantize(f, n_outlier ? c->residual : x, v->k, c->codes);
    if (p->adds)
        add_product(w, v, f, p->y);
    else
        multiply(w, v, f, p->bias, p->y);
    if (w->act_bits == 16) {
        act_residual(f, (const char *)c->codes, x, v->k, c->residual);
        c->ref->act_quantize(f, c->residual, v->k, c->codes);
        add_product(w, v, f, p->y);
    }
    for (int i = 0; i < n_outlier; i++) {
        c->ref->column(v, outliers[i].at, 0, v->n, c->part);
        c->ref->add(p->y, c->part, outliers[i].value, p->y, v->n);
    }
}

static void product(const walk *w, const one_product *p) {
    if (p->v->format.layout == PACK_TILE) {
        packed_product(w, p);
        return;
    }
    const linear_args a = {.w = p->v,
                           .x = p->x,
                           .ldx = p->v->k,
                           .bias = p->bias,
                           .y = p->y,
                           .ldy = p->v->n,
                           .n_row = 1,
                           .scratch = w->c->scratch};
    linear_run(w->c->ref, &a, 0, p->v->n);
}

/* The chosen experts one after the other, in the order of their numbers. */
static void experts(const walk *w, const op *o) {
    const check *c = w->c;
    const int64_t n = o->u.experts.n, k = o->u.experts.k;
    const float *chosen = at(w, o->in2), *bias = vector(w, o->b);
    float *out = at(w, o->out);
    for (int64_t i = 0; o->u.experts.sum && !o->adds && i < n; i++)
        out[i] = 0;
    for (int64_t i = 0; i < o->u.experts.n_used; i++) {
        const int64_t e = route_expert(chosen, i);
        view v = page_layout_expert(&c->views[o->w], o->u.experts.n_expert, e);
        const float by = o->u.experts.weighted ? route_weight(o, chosen, i) : 1;
        float *to = out + (o->u.experts.sum ? 0 : i * n);
        v.n = n;
        product(w, &(one_product){.of = weight_of(w, o),
                                  .v = &v,
                                  .bias = bias ? bias + e * n : NULL,
                                  .x = at(w, o->in) + (o->u.experts.each ? i * k : 0),
                                  .y = c->expert});
        if (o->u.experts.sum || o->adds)
            c->ref->add(to, c->expert, by, to, n);
        else
            c->ref->scale(c->expert, by, to, n);
    }
}

/* All groups, one after the other. A group's rows may begin within a panel. */
static void groups(const walk *w, const op *o) {
    const view *all = &w->c->views[o->w];
    const int64_t n = o->u.experts.n, k = o->u.experts.k;
    uint64_t bytes;
    for (int64_t g = 0; g < o->u.experts.n_expert; g++) {
        const int64_t first = g * n / PACK_PANEL * PACK_PANEL, before = g * n - first;
        view v = *all;
        pack_bytes(&v.format, PACK_PANEL, v.k, &bytes);
        v.data = (const uint8_t *)all->data + (uint64_t)(first / PACK_PANEL) * bytes;
        v.n = before + n;
        product(w,
                &(one_product){.of = weight_of(w, o), .v = &v, .x = at(w, o->in) + g * k, .y = w->c->expert});
        float *out = at(w, o->out) + g * n;
        if (o->adds)
            w->c->ref->add(out, w->c->expert + before, 1, out, n);
        else
            memcpy(out, w->c->expert + before, (size_t)n * sizeof *out);
    }
}

static void spread(const walk *w, const op *o) {
    const int64_t n = o->u.experts.n, k = o->u.experts.k;
    for (int64_t i = 0; i < o->u.experts.n_expert * k; i++) {
        float *out = at(w, o->out) + i / k * n;
        const float x = at(w, o->in)[i];
        pack_read_row(&w->c->views[o->w], i, w->c->row);
        if (i % k == 0 && !o->adds)
            w->c->ref->scale(w->c->row, x, out, n);
        else
            w->c->ref->add(out, w->c->row, x, out, n);
    }
}

/* ---- positions ---- */

/* Rotates in single precision, like the reference implementations. */
static void rotate(const walk *w, const op *o) {
    const check *c = w->c;
    const int64_t half = o->u.rope.n_rot / 2;
    const int64_t position = w->position - model_rope_behind(layout_model(c->setup.layout), o->u.rope.table);
    float *out = at(w, o->out), factor = 1;
    model_rope_freqs(layout_model(c->setup.layout), o->u.rope.table, w->of->length, c->inv_freq, &factor);
    for (int64_t i = 0; i < half; i++) {
        const float angle = (float)position * c->inv_freq[i];
        c->cos_sin[i] = cosf(angle) * factor;
        c->cos_sin[half + i] = sinf(angle) * factor;
    }
    if (o->in != o->out)
        memcpy(out, at(w, o->in), (size_t)o->n * sizeof *out);
    rope_row(c->ref, o, c->cos_sin, out);
}

/* Converts n addresses of the device to host addresses. */
static nib_status find_pages(uint8_t *const *pages, int64_t n, uint8_t **real, nib_error *err) {
    for (int64_t i = 0; i < n; i++) {
        real[i] = check_at(pages[i]);
        if (!real[i])
            return nib_fail(err, NIB_E_DEVICE, "keys and values are not in the check back end's memory");
    }
    return NIB_OK;
}

/* Opens a sequence's KV cache by host addresses. With codes, only full blocks have pages. */
static nib_status open_cache(const walk *w, int layer, kv_view *out, nib_error *err) {
    check *c = w->c;
    const kv_view *kv = &w->of->kv->layers[layer];
    const bool coded = kv_is_coded(kv->type);
    const int64_t n = coded ? (w->position + 1) / KV_BLOCK : w->position / KV_BLOCK + 1;
    *out = *kv;
    if (mem_grow((void **)&c->pages, &c->max_pages, (size_t)n + 1, sizeof *c->pages))
        return nib_fail_nomem(err, (size_t)n * sizeof *c->pages, "a list of pages");
    out->pages = out->entry_pages = c->pages; /* no layer slides */
    NIB_TRY(find_pages(kv->pages, n, c->pages, err));
    return coded ? find_pages(&kv->recent, 1, &out->recent, err) : NIB_OK;
}

static void store(const walk *w, const op *o, const kv_view *kv) {
    const kernel_table *k = w->c->ref;
    const bool is_last = (w->position + 1) % KV_BLOCK == 0;
    k->kv_store(kv, false, w->position, at(w, o->in2));
    if (!kv->shared)
        k->kv_store(kv, true, w->position, at(w, o->in3));
    if (o->u.attn.every)
        entries_store(kv, false, w->position, at(w, o->in3));
    const int64_t kinds = kv->shared ? 1 : 2;
    for (int64_t i = 0; kv_is_coded(kv->type) && is_last && i < kinds * kv->n_kv_head; i++)
        k->kv_pack(kv, i % kinds, i / kinds, w->position / KV_BLOCK);
}

static nib_status attend(const walk *w, const op *o, nib_error *err) {
    const check *c = w->c;
    kv_view kv;
    NIB_TRY(open_cache(w, o->u.attn.layer, &kv, err));
    if (op_stores(o))
        store(w, o, &kv);
    if (c->run.visit.cache_only)
        return NIB_OK;
    const attend_args a = {.kv = kv,
                           .q = at(w, o->in),
                           .out = at(w, o->out),
                           .n_row = 1,
                           .first_position = w->position,
                           .n_head = o->u.attn.n_head,
                           .window = o->u.attn.window,
                           .chunked = o->u.attn.chunked,
                           .scale = o->u.attn.scale,
                           .softcap = o->u.attn.softcap,
                           .alibi_max_bias = o->u.attn.alibi_max_bias,
                           .alibi_scale = o->u.attn.alibi_scale,
                           .sinks = vector(w, o->w),
                           .scratch = c->scratch};
    if (o->u.attn.every)
        entries_attend(c->ref, &a, o->u.attn.d_index ? at(w, o->u.attn.chosen) : NULL, 0, a.n_head, 0);
    else
        c->ref->attend(&a, 0, a.n_head, 0, 1);
    return NIB_OK;
}

static nib_status choose(const walk *w, const op *o, nib_error *err) {
    kv_view kv;
    NIB_TRY(open_cache(w, o->u.select.layer, &kv, err));
    entries_store(&kv, true, w->position, at(w, o->in2));
    if (!w->c->run.visit.cache_only)
        entries_select(&kv, o, w->position, at(w, o->in), at(w, o->in3), w->c->scratch, at(w, o->out));
    return NIB_OK;
}

/* ---- recurrent states ---- */

static nib_status carry(const walk *w, const op *o, nib_error *err) {
    float *state = (float *)(void *)check_at(w->of->kv->state.at);
    if (!state)
        return nib_fail(err, NIB_E_DEVICE, "a recurrent state is not in the check back end's memory");
    const recurrent_rows one = {.x = at(w, o->in),
                                .x2 = o->in2 == REG_NONE ? NULL : at(w, o->in2),
                                .x3 = o->in3 == REG_NONE ? NULL : at(w, o->in3),
                                .out = at(w, o->out),
                                .n_row = 1,
                                .position = w->position,
                                .begins = w->position == 0,
                                .state = state,
                                .w = vector(w, o->w),
                                .b = vector(w, o->b),
                                .skip = vector(w, o->w2)};
    recurrent_run(w->c->ref, o, &one, 0, recurrent_n_part(o));
    if (w->of->kv->save_to && w->of->kv->save_at == w->position + 1)
        recurrent_copy(o, state, check_at(w->of->kv->save_to), 0, recurrent_n_part(o));
    return NIB_OK;
}

/* ---- ranks that share layers ---- */

static nib_status reduce(const walk *w, const op *o, nib_error *err) {
    rank_sums *s = w->c->setup.sums;
    const uint64_t now = sums_now(s), tag = (uint64_t)w->c->run.visit.block << 32 | (uint64_t)w->row;
    float *out = at(w, o->out);
    memcpy(sums_own(s, now), at(w, o->in), (size_t)o->n * sizeof *out);
    sums_publish(s, now, tag);
    NIB_TRY(sums_wait(s, now, tag, err));
    memcpy(out, sums_of(s, now, 0), (size_t)o->n * sizeof *out);
    for (int rank = 1; rank < sums_n_rank(s); rank++)
        w->c->ref->add(out, sums_of(s, now, rank), 1, out, o->n);
    return NIB_OK;
}

/* ---- one op ---- */

static nib_status run_op(const walk *w, const op *o, nib_error *err) {
    const kernel_table *k = w->c->ref;
    const float *x = o->in == REG_NONE ? NULL : at(w, o->in), *y = o->in2 == REG_NONE ? NULL : at(w, o->in2),
                *z = o->in3 == REG_NONE ? NULL : at(w, o->in3);
    float *out = at(w, o->out);
    switch (o->kind) {
    case OP_REDUCE: return reduce(w, o, err);
    case OP_EMBED:
    case OP_EMBED_POS: return embed(w, o, err);
    case OP_ATTENTION: return attend(w, o, err);
    case OP_CONV:
    case OP_SSD:
    case OP_SCAN:
    case OP_DELTA:
    case OP_POOL: return carry(w, o, err);
    case OP_SELECT: return choose(w, o, err);
    case OP_NORM:
        k->norm(o->u.norm.kind, x, vector(w, o->w), vector(w, o->b), out, o->k, o->u.norm.n_group,
                o->u.norm.w_full, o->u.norm.eps);
        break;
    case OP_LINEAR:
        product(w, &(one_product){weight_of(w, o), &w->c->views[o->w], vector(w, o->b), x, out, o->adds});
        break;
    case OP_EXPERTS: experts(w, o); break;
    case OP_GROUPS: groups(w, o); break;
    case OP_SPREAD: spread(w, o); break;
    case OP_ROPE: rotate(w, o); break;
    case OP_ACT: k->act(o->u.act.kind, x, out, o->n); break;
    case OP_GATE: k->gate(o->u.act.kind, x, y, out, o->n); break;
    case OP_ADD: k->add(x, y, o->u.num.value * add_gate(z), out, o->n); break;
    case OP_SCALE: k->scale(x, o->u.num.value, out, o->n); break;
    case OP_CLAMP: k->clamp(x, o->u.num.value, out, o->n); break;
    case OP_SOFTCAP: k->softcap(x, o->u.num.value, out, o->n); break;
    case OP_XIELU: k->xielu(&o->u.xielu, x, out, o->n); break;
    default:
        if (!row_op_is(o->kind))
            return nib_fail(err, NIB_E_DEVICE, "the check back end does not support %s", op_name(o->kind));
        row_op(k, o,
               &(row_args){.in = x,
                           .in2 = y,
                           .out = out,
                           .w = vector(w, o->w),
                           .b = vector(w, o->b),
                           .w2 = vector(w, o->w2),
                           .position = w->position,
                           .token = w->of->tokens[w->position - w->of->position]});
    }
    return NIB_OK;
}

/* ---- probes ---- */

/* A copy of n floats for a receiver. destroy_copy() overwrites it with NaN when the receiver returns. */
static const float *copy_for(const walk *w, reg r, int64_t n) {
    memcpy(w->c->seen, at(w, r), (size_t)n * sizeof(float));
    return w->c->seen;
}

static void destroy_copy(const walk *w, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        w->c->seen[i] = NAN;
}

static void call_probe(const walk *w, const program *p, int i) {
    const check *c = w->c;
    const probe *to = c->pass.probe;
    for (int point = 0; point < PROBE_N && to && to->point; point++) {
        const reg from = c->places.from[point];
        if (c->places.at[point] != i)
            continue;
        const op *o = i < 0 ? &p->ops[p->n_op - 1] : &p->ops[i];
        const probe_data seen = {.point = (probe_point)point,
                                 .block = c->run.visit.block,
                                 .segment = c->run.segment,
                                 .row = c->run.segment_row + w->run_row,
                                 .n_row = 1,
                                 .x = copy_for(w, from, o->n),
                                 .width = o->n,
                                 .scale = point == PROBE_FFN ? o->u.num.value : 1};
        to->point(to->user, &seen);
        destroy_copy(w, o->n);
    }
}

static void report_input(const walk *w, const op *o) {
    const probe *to = w->c->pass.probe;
    if (!to || !to->input || o->kind != OP_LINEAR)
        return;
    const probe_input in = {
        .block = w->c->run.visit.block, .w = o->w, .n_row = 1, .x = copy_for(w, o->in, o->k), .k = o->k};
    to->input(to->user, &in);
    destroy_copy(w, o->k);
}

/* ---- a row ---- */

static void forget_registers(const walk *w) {
    for (int r = 0; r < model_n_reg(layout_model(w->c->setup.layout)); r++)
        for (int64_t i = 0; r != REG_X && i < check_width(w->c, (reg)r); i++)
            at(w, (reg)r)[i] = NAN;
}

/* Gives the receiver a copy, which is destroyed afterwards. */
static void give_hidden(const walk *w, const op *o) {
    const hidden_receiver *to = w->c->pass.hidden;
    float *copy = w->c->seen;
    memcpy(copy, at(w, o->in), (size_t)o->k * sizeof *copy);
    to->receive(to->user, w->c->run.visit.row + w->run_row, 1, copy, o->k);
    for (int64_t i = 0; i < o->k; i++)
        copy[i] = NAN;
}

nib_status check_row(check *c, int64_t r, nib_error *err) {
    const visit *v = &c->run.visit;
    const program *p = &layout_block(c->setup.layout, v->block)->program;
    const bool head = v->block == layout_n_block(c->setup.layout) - 1;
    int64_t row = v->row + r;
    walk w = {.c = c, .run_row = r, .is_head = head};
    w.of = visits_segment(c->pass.segments, c->pass.n_segment, head, &row);
    w.row = w.of->row + row;
    w.position = w.of->position + row;
    w.act_bits = c->run.act_bits ? c->run.act_bits : c->setup.act_bits[v->block];
    forget_registers(&w);
    call_probe(&w, p, PROBE_BEFORE);
    for (int i = 0; i < p->n_op; i++) {
        if (v->cache_only && !p->ops[i].fuse.feeds_cache)
            continue;
        NIB_TRY(cancel_check(c->pass.cancel, err));
        report_input(&w, &p->ops[i]);
        if (c->pass.hidden && head && p->ops[i].out == REG_LOGITS) {
            give_hidden(&w, &p->ops[i]);
            break;
        }
        NIB_TRY(run_op(&w, &p->ops[i], err));
        call_probe(&w, p, i);
    }
    return NIB_OK;
}
