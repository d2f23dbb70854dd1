/* launch_embed.c - rows of embeddings. The GPU looks them up if it has the tables. Otherwise the
 * host looks them up and copies the rows to the GPU. */
#include "exec/cuda/launch.h"

#include <stdatomic.h>
#include <string.h>

enum {
    MANY_LOOKUPS = 8,  /* rows of a table from which on the host's threads are used */
    MAX_LOOKUP = 16384 /* floats of a table's row, on a thread's stack */
};

/* The number of the row in op o's table for row r of the group. */
static int64_t table_row(const launch_walk *w, const op *o, int64_t r) {
    int64_t row = w->g->row + r;
    const segment *s = visits_segment(w->c->now.pass.segments, w->c->now.pass.n_segment, false, &row);
    return o->kind == OP_EMBED ? s->tokens[row] : s->position + row + o->u.num.offset;
}

/* Sets the row at `out` to what op i of the step looked up, or adds it. */
static void put_row(int i, const op *o, const float *looked_up, float *out) {
    const kernel_table *host = kernels_table();
    const float *row = looked_up + (o->kind == OP_EMBED ? o->u.num.offset : 0);
    if (i == 0)
        host->scale(row, o->u.num.value, out, o->n);
    else
        host->add(out, row, o->kind == OP_EMBED ? o->u.num.value : 1, out, o->n);
}

static float *row_of(const launch_walk *w, const step *s, int64_t r) {
    return w->c->mem.embed + (w->g->row + r) * w->ops[s->first].n;
}

static nib_status embed_row(const launch_walk *w, const step *s, int64_t r, nib_error *err) {
    float *looked_up = w->c->mem.looked_up;
    for (int i = 0; i < s->n; i++) {
        const op *o = &w->ops[s->first + i];
        NIB_TRY(pager_read_row(w->c->now.run.pager, w->g->block, o->w, table_row(w, o, r), looked_up, err));
        put_row(i, o, looked_up, row_of(w, s, r));
    }
    return NIB_OK;
}

/* Looks many rows up on all threads: a packed row is spread over all lines of its panel. */
typedef struct embed_job {
    const launch_walk *w;
    const step *s;
    atomic_bool missing; /* some row is not resident */
} embed_job;

static void embed_part(void *arg, int thread, int n_thread) {
    embed_job *j = arg;
    const launch_walk *w = j->w;
    float looked_up[MAX_LOOKUP];
    int64_t begin, end;
    pool_split(w->g->n_row, 1, thread, n_thread, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        for (int i = 0; i < j->s->n; i++) {
            const op *o = &w->ops[j->s->first + i];
            if (pager_read_resident_row(w->c->now.run.pager, w->g->block, o->w, table_row(w, o, r),
                                        looked_up))
                put_row(i, o, looked_up, row_of(w, j->s, r));
            else
                atomic_store(&j->missing, true);
        }
}

/* Whether the rows are so many that threads pay, and each thread has memory for a table's row. */
static bool uses_threads(const launch_walk *w, const step *s) {
    bool fits = w->g->n_row >= MANY_LOOKUPS;
    for (int i = 0; i < s->n; i++) {
        const op *o = &w->ops[s->first + i];
        fits = fits && o->n <= MAX_LOOKUP && o->k <= MAX_LOOKUP;
    }
    return fits;
}

static nib_status embed_rows(const launch_walk *w, const step *s, nib_error *err) {
    embed_job j = {.w = w, .s = s};
    if (uses_threads(w, s)) {
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
