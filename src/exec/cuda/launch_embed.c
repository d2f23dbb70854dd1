/* launch_embed.c - rows of embeddings. The GPU looks them up if it has the tables. Otherwise the
 * host looks them up and copies the rows to the GPU. */
#include "exec/cuda/launch.h"

#include <stdatomic.h>
#include <string.h>

enum { MANY_LOOKUPS = 8 /* rows of a table from which on the host's threads are used */ };

/* The number of the row in op o's table for row r of the group. */
static int64_t table_row(const launch_walk *w, const op *o, int64_t r) {
    int64_t row = w->g->row + r;
    const segment *s = visits_segment(w->c->now.pass.segments, w->c->now.pass.n_segment, false, &row);
    return o->kind == OP_EMBED ? s->tokens[row] : s->position + row + o->u.num.offset;
}

static nib_status embed_row(const launch_walk *w, const step *s, int64_t r, nib_error *err) {
    const kernel_table *host = kernels_table();
    const cuda *c = w->c;
    const int64_t n = w->ops[s->first].n;
    float *out = c->mem.embed + (w->g->row + r) * n;
    for (int i = 0; i < s->n; i++) {
        const op *o = &w->ops[s->first + i];
        NIB_TRY(
            pager_read_row(c->now.run.pager, w->g->block, o->w, table_row(w, o, r), c->mem.looked_up, err));
        const float *row = c->mem.looked_up + (o->kind == OP_EMBED ? o->u.num.offset : 0);
        if (i == 0)
            host->scale(row, o->u.num.value, out, n);
        else
            host->add(out, row, o->kind == OP_EMBED ? o->u.num.value : 1, out, n);
    }
    return NIB_OK;
}

/* Looks up many rows of one table on all threads, because a packed row is spread over all lines of its
 * panel. */
typedef struct embed_job {
    const launch_walk *w;
    const op *o;
    atomic_bool missing; /* some row is not resident */
} embed_job;

static void embed_part(void *arg, int thread, int n_thread) {
    embed_job *j = arg;
    const cuda *c = j->w->c;
    int64_t begin, end;
    pool_split(j->w->g->n_row, 1, thread, n_thread, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *out = c->mem.embed + (j->w->g->row + r) * j->o->n;
        if (pager_read_resident_row(c->now.run.pager, j->w->g->block, j->o->w, table_row(j->w, j->o, r), out))
            kernels_table()->scale(out, j->o->u.num.value, out, j->o->n);
        else
            atomic_store(&j->missing, true);
    }
}

static nib_status embed_rows(const launch_walk *w, const step *s, nib_error *err) {
    embed_job j = {.w = w, .o = &w->ops[s->first]};
    if (s->n == 1 && j.o->kind == OP_EMBED && j.o->k == 0 && w->g->n_row >= MANY_LOOKUPS) {
        pool_run(w->c->setup.threads, embed_part, &j);
        if (!atomic_load(&j.missing))
            return NIB_OK;
    }
    for (int64_t r = 0; r < w->g->n_row; r++)
        NIB_TRY(embed_row(w, s, r, err));
    return NIB_OK;
}

static nib_status send_rows(const launch_walk *w, float *to, const float *from, int64_t n, nib_error *err) {
    return spans_copy(w->c, "copy embeddings", DEVICE_LOAD, to, from, (uint64_t)n * sizeof *from, err);
}

/* Adds the looked-up rows to what the register has. */
static nib_status add_rows(const launch_walk *w, const op *o, nib_error *err) {
    cuda *c = w->c;
    const int64_t n_row = w->g->n_row;
    cuda_each a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    NIB_TRY(send_rows(w, c->mem.embed_there, c->mem.embed + w->g->row * o->n, n_row * o->n, err));
    a.kind = OP_ADD;
    a.x = launch_at(w, o->out);
    a.y = c->mem.embed_there;
    a.value = 1;
    a.out = launch_at(w, o->out);
    a.n_row = n_row;
    a.n = o->n;
    a.ldx = a.ldo = launch_ld(w, o->out);
    a.ldy = o->n;
    return replay_add(c, LAUNCH_EACH, o, &a, sizeof a, err);
}

/* Looks rows up on the GPU. */
static nib_status look_up(const launch_walk *w, const op *o, nib_error *err) {
    const bool by_token = o->kind == OP_EMBED;
    cuda_embed a;
    memset(&a, 0, sizeof a); /* its padding too: launches are compared byte by byte */
    cuda_weight(w->c, w->g->block, o->w, &a.w);
    a.row = (by_token ? w->c->mem.token : w->c->mem.position) + w->g->row;
    a.offset = by_token ? 0 : o->u.num.offset;
    a.column = by_token ? o->u.num.offset : 0;
    a.n = o->n;
    a.factor = by_token ? o->u.num.value : 1;
    a.adds = !by_token || o->adds;
    a.out = launch_at(w, o->out);
    a.ldo = launch_ld(w, o->out);
    a.n_row = w->g->n_row;
    return replay_add(w->c, LAUNCH_EMBED, o, &a, sizeof a, err);
}

nib_status launch_embed(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    const int64_t ld = launch_ld(w, o->out);
    if (device_store_has_tables(w->c->base.store)) {
        for (int i = 0; i < s->n; i++)
            NIB_TRY(look_up(w, o + i, err));
        return NIB_OK;
    }
    NIB_TRY(replay_flush(w->c, err));
    NIB_TRY(embed_rows(w, s, err));
    if (o->adds)
        return add_rows(w, o, err);
    if (ld == o->n)
        return send_rows(w, launch_at(w, o->out), w->c->mem.embed + w->g->row * ld, w->g->n_row * ld, err);
    for (int64_t r = 0; r < w->g->n_row; r++)
        NIB_TRY(
            send_rows(w, launch_at(w, o->out) + r * ld, w->c->mem.embed + (w->g->row + r) * o->n, o->n, err));
    return NIB_OK;
}
