/* sites.c - see sites.h. */
#include "model/sites.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/internal.h"
#include "model/page_layout.h"

#include <string.h>

/* ---- numbering ---- */

static int count_products(const model *m) {
    int n = 0;
    for (int b = 0; b < model_n_block(m); b++)
        for (int i = 0; i < model_block(m, b)->program.n_op; i++) {
            const op_kind kind = model_block(m, b)->program.ops[i].kind;
            n += kind == OP_LINEAR || kind == OP_EXPERTS;
        }
    return n;
}

/* Numbers the sites. Products that read the same register without a write in between share a site. */
static void number_sites(model_sites *s, const model *m) {
    for (int b = 0; b < model_n_block(m); b++) {
        const program *p = &model_block(m, b)->program;
        reg at = REG_NONE;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            if (o->kind == OP_LINEAR) {
                const weight *of_op = &model_block(m, b)->weights[o->w];
                const bool shared = of_op->shared_block >= 0;
                const int owner = shared ? of_op->shared_block : b, w = shared ? of_op->shared_index : o->w;
                if (o->in != at)
                    s->k[s->n_site++] = o->k;
                at = o->in;
                int *of = &s->of[s->first[owner] + w];
                *of = *of < 0 ? s->n_site - 1 : *of;
            }
            if (o->out == at)
                at = REG_NONE;
        }
    }
}

static void number_stacks(model_sites *s, const model *m) {
    for (int b = 0; b < model_n_block(m); b++) {
        const program *p = &model_block(m, b)->program;
        reg at = REG_NONE;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            if (o->kind == OP_EXPERTS) {
                if (o->in != at)
                    s->k[s->n_site + s->n_stack++] = o->u.experts.n_expert * o->u.experts.k;
                at = o->in;
                s->stack[s->first[b] + o->w] = s->n_site + s->n_stack - 1;
            }
            if (o->out == at)
                at = REG_NONE;
        }
    }
}

nib_status sites_open(model_sites *s, const model *m, nib_error *err) {
    const size_t n_block = (size_t)model_n_block(m), n_product = (size_t)count_products(m);
    memset(s, 0, sizeof *s);
    s->first = mem_calloc(n_block + 1, sizeof *s->first);
    s->k = mem_calloc(n_product + 1, sizeof *s->k);
    for (size_t b = 0; s->first && b < n_block; b++)
        s->first[b + 1] = s->first[b] + model_block(m, (int)b)->n_weight;
    s->of = s->first ? mem_calloc((size_t)s->first[n_block] + 1, sizeof *s->of) : NULL;
    s->stack = s->of ? mem_calloc((size_t)s->first[n_block] + 1, sizeof *s->stack) : NULL;
    if (!s->k || !s->stack) {
        sites_close(s);
        return nib_fail_nomem(err, n_block * sizeof *s->first, "the inputs of products");
    }
    memset(s->of, -1, (size_t)s->first[n_block] * sizeof *s->of);
    memset(s->stack, -1, (size_t)s->first[n_block] * sizeof *s->stack);
    number_sites(s, m);
    number_stacks(s, m);
    return NIB_OK;
}

void sites_close(model_sites *s) {
    mem_free(s->k);
    mem_free(s->first);
    mem_free(s->of);
    mem_free(s->stack);
    memset(s, 0, sizeof *s);
}

int sites_of(const model_sites *s, const layout *lay, int b, int w) {
    page_layout_own(lay, &b, &w);
    if (weight_is_second(&layout_block(lay, b)->weights[w])) /* sites exist for first slices only */
        w = layout_block(lay, b)->weights[w].first_slice;
    return s->of[s->first[b] + w];
}

/* ---- sources ---- */

static int writer_before(const program *p, int before, reg r) {
    for (int i = before - 1; i >= 0; i--)
        if (p->ops[i].out == r)
            return i;
    return -1;
}

/* Whether only products read register r between op `from`, which writes it, and the next op that writes it.
 */
static bool only_products_read(const program *p, int from, reg r) {
    for (int i = from + 1; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        if ((o->in == r && o->kind != OP_LINEAR) || o->in2 == r || o->in3 == r)
            return false;
        if (o->out == r)
            return true;
    }
    return true;
}

/* Whether op `reader` is the only one that reads register r after op `from`. */
static bool only_reader(const program *p, int from, int reader, reg r) {
    for (int i = from + 1; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        if (i != reader && (o->in == r || o->in2 == r || o->in3 == r))
            return false;
        if (o->out == r)
            return true;
    }
    return true;
}

static bool of_product(const block *b, int reader, reg r, int64_t n, site_source *out) {
    const int i = writer_before(&b->program, reader, r);
    const op *o = i < 0 ? NULL : &b->program.ops[i];
    if (!o || o->kind != OP_LINEAR || o->adds || o->n != n || !only_reader(&b->program, i, reader, r))
        return false;
    *out = (site_source){.w = o->w, .b = o->b, .n_share = 1, .width = n};
    return true;
}

bool site_find_source(const block *b, int w, site_source *out) {
    const program *p = &b->program;
    int at = 0;
    while (at < p->n_op && !(p->ops[at].kind == OP_LINEAR && p->ops[at].w == w))
        at++;
    const reg in = at < p->n_op ? p->ops[at].in : REG_NONE;
    const int from = in == REG_NONE ? -1 : writer_before(p, at, in);
    if (from < 0 || !only_products_read(p, from, in))
        return false;
    const op *o = &p->ops[from];
    switch (o->kind) {
    case OP_NORM:
        if (o->w < 0 || o->u.norm.n_group != 1)
            return false;
        *out = (site_source){.w = o->w, .b = o->b, .n_share = 1, .width = o->n};
        return true;
    case OP_GATE: return of_product(b, from, o->in2, o->n, out);
    case OP_ATTENTION: {
        const int64_t d = o->u.attn.d_head, share = o->u.attn.n_head / o->u.attn.n_kv_head;
        if (!of_product(b, from, o->in3, o->u.attn.n_kv_head * d, out))
            return false;
        out->n_share = share;
        out->width = d;
        return true;
    }
    default: return false;
    }
}

int64_t site_maker(const site_source *s, int64_t c) {
    return c / (s->n_share * s->width) * s->width + c % s->width;
}

/* ---- the file's advice ---- */

void sites_take_advice(model *m, const op *ops, int n_op, weight *weights) {
    const meta_value *v = container_meta(m->c, SITES_N8_KEY);
    const bool known = v && v->type == META_ARRAY && v->elem == META_INT;
    reg at = REG_NONE;
    for (int i = 0; i < n_op; i++) {
        const op *o = &ops[i];
        if (o->kind == OP_LINEAR) {
            m->n_site += o->in != at;
            at = o->in;
            const int64_t n8 = known && (size_t)m->n_site <= v->n ? v->v.ints[m->n_site - 1] : 0;
            weights[o->w].n8 = (uint8_t)NUM_MIN(NUM_MAX(n8, 0), UINT8_MAX);
        }
        if (o->out == at)
            at = REG_NONE;
    }
}

nib_status sites_check_advice(const model *m, nib_error *err) {
    const meta_value *v = container_meta(m->c, SITES_N8_KEY);
    if (!v || (v->type == META_ARRAY && v->elem == META_INT && v->n == (size_t)m->n_site))
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL, "%s: expected %d integers, one for each input of products, found %zu",
                    SITES_N8_KEY, m->n_site, v->type == META_ARRAY ? v->n : 1);
}
