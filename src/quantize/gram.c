/* gram.c - see gram.h. */
#include "quantize/gram.h"

#include "base/mem.h"
#include "base/num.h"
#include "quantize/lapack.h"

#include <string.h>

static uint64_t sum_bytes(int64_t k, bool diagonal) {
    return (uint64_t)k * (diagonal ? 1 : (uint64_t)k) * sizeof(float);
}

/* Bytes of the sums of a block: each product that reads a new input has one. */
static uint64_t block_bytes(const block *b, bool diagonal) {
    uint64_t bytes = 0;
    reg at = REG_NONE;
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        if (o->kind == OP_LINEAR && o->in != at)
            bytes += sum_bytes(o->k, diagonal);
        if (o->kind == OP_LINEAR)
            at = o->in;
        if (o->out == at)
            at = REG_NONE;
    }
    return bytes;
}

uint64_t gram_bytes(const model *m, bool diagonal) {
    uint64_t bytes = 0;
    for (int b = 0; b < model_n_block(m); b++)
        bytes = NUM_MAX(bytes, block_bytes(model_block(m, b), diagonal));
    return bytes;
}

static gram_site *begin_site(gram *g, int site, int w, int64_t k) {
    gram_site *s = &g->of[g->n];
    const uint64_t bytes = sum_bytes(k, g->diagonal);
    if (g->n == GRAM_SITES ||
        (g->ledger && ledger_charge(g->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, bytes, &g->why) != NIB_OK)) {
        g->failed = true;
        return NULL;
    }
    g->charged += bytes;
    *s = (gram_site){.site = site, .w = w, .k = k, .diagonal = g->diagonal, .sum = mem_map((size_t)bytes)};
    if (!s->sum) {
        nib_fail_nomem(&g->why, (size_t)bytes, "products of channels");
        g->failed = true;
        return NULL;
    }
    g->n++;
    return s;
}

static void add_squares(float *sum, const float *x, int64_t k, int64_t n_row) {
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t i = 0; i < k; i++)
            sum[i] += x[r * k + i] * x[r * k + i];
}

static void see(void *user, const probe_input *in) {
    gram *g = user;
    const int site = sites_of(&g->sites, g->layout, in->block, in->w);
    if (site < 0 || g->failed)
        return;
    if (in->block != g->block) {
        gram_clear(g);
        g->block = in->block;
    }
    gram_site *s = NULL;
    for (int i = 0; i < g->n && !s; i++)
        s = g->of[i].site == site ? &g->of[i] : NULL;
    if (s && s->w != in->w) /* another product with the same input */
        return;
    if (!s && !(s = begin_site(g, site, in->w, in->k)))
        return;
    if (s->diagonal)
        add_squares(s->sum, in->x, in->k, in->n_row);
    else
        lapack_add_squares(s->sum, in->x, in->k, in->n_row, g->threads);
    s->n_row += in->n_row;
}

nib_status gram_open(gram *g, const layout *lay, bool diagonal, pool *threads, ledger *l, nib_error *err) {
    *g = (gram){.layout = lay,
                .diagonal = diagonal,
                .block = -1,
                .threads = threads,
                .ledger = l,
                .probe = {.input = see, .user = g}};
    return sites_open(&g->sites, layout_model(lay), err);
}

/* Copies one triangle to the other in squares of a few cache lines, so that lines on both sides are used
 * completely while they are cached. */
static void mirror_rows(void *arg, int thread, int n_thread) {
    enum { SIDE = 64 };
    const gram_site *s = arg;
    for (int64_t at = (int64_t)thread * SIDE; at < s->k; at += (int64_t)n_thread * SIDE)
        for (int64_t from = 0; from <= at; from += SIDE)
            for (int64_t i = at; i < NUM_MIN(at + SIDE, s->k); i++)
                for (int64_t j = from; j < NUM_MIN(from + SIDE, i); j++)
                    s->sum[i * s->k + j] = s->sum[j * s->k + i];
}

void gram_complete(gram *g) {
    for (int i = 0; i < g->n && !g->diagonal; i++)
        pool_run(g->threads, mirror_rows, &g->of[i]);
}

void gram_clear(gram *g) {
    for (int i = 0; i < g->n; i++)
        mem_unmap(g->of[i].sum, (size_t)sum_bytes(g->of[i].k, g->diagonal));
    if (g->ledger)
        ledger_release(g->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, g->charged);
    g->charged = 0;
    g->n = 0;
    g->block = -1;
}

void gram_close(gram *g) {
    gram_clear(g);
    sites_close(&g->sites);
    memset(g, 0, sizeof *g);
}

const gram_site *gram_of(const gram *g, int w) {
    const int site = g->block < 0 ? -1 : sites_of(&g->sites, g->layout, g->block, w);
    for (int i = 0; i < g->n; i++)
        if (g->of[i].site == site && site >= 0)
            return &g->of[i];
    return NULL;
}
