/* reduce.c - see reduce.h. */
#include "base/num.h"
#include "exec/cuda/launch.h"
#include "memory/device_cuda.h"

#include <stdio.h>

enum {
    MAX_PAIR = 1 << 17, /* 64 rows of 4,096: 2 MiB for each rank, twice, beside the tiles of many rows */
    SHARED_PAGE = 4096, /* of the sums' memory, with the number of the pass that has failed */
};

nib_status reduce_open(cuda *c, nib_error *err) {
    rank_sums *s = c->setup.sums;
    if (!s)
        return NIB_OK;
    const int n = sums_n_rank(s);
    if (n > CUDA_MAX_RANK)
        return nib_fail(err, NIB_E_USAGE, "expected at most %d GPUs that share every layer, found %d",
                        CUDA_MAX_RANK, n);
    const uint64_t bytes = (uint64_t)cuda_ranks_bytes(n, MAX_PAIR);
    NIB_TRY(ledger_charge(c->setup.ledger, c->setup.place, NIB_OWNER_ACTIVATIONS, bytes, err));
    c->reduce.charged = bytes;
    NIB_TRY(device_cuda_enter(c->base.device, err));
    void **own = &c->reduce.places[sums_rank(s)], *failed;
    NIB_TRY(device_cuda_ok(c->base.device, c->k->share_new(own, bytes, &c->reduce.handle),
                           "memory for sums of ranks", err));
    NIB_TRY(device_cuda_ok(c->base.device, c->k->map(sums_failed_at(s), SHARED_PAGE, &failed),
                           "mapping the sums of ranks", err));
    c->reduce.failed_page = sums_failed_at(s);
    c->reduce.failed = failed;
    return NIB_OK;
}

void reduce_close(cuda *c) {
    reduce *r = &c->reduce;
    if (!r->charged)
        return;
    device_cuda_enter(c->base.device, NULL);
    for (int i = 0; i < CUDA_MAX_RANK; i++)
        if (r->places[i] && i == sums_rank(c->setup.sums))
            c->k->release(r->places[i]);
        else if (r->places[i])
            c->k->share_close(r->places[i]);
    if (r->failed_page)
        c->k->unpin(r->failed_page);
    ledger_release(c->setup.ledger, c->setup.place, NIB_OWNER_ACTIVATIONS, r->charged);
    memset(r, 0, sizeof *r);
}

nib_status reduce_check(const cuda *c, nib_error *err) {
    if (!c->setup.sums || (c->in_place.n == 0 && c->attend_host.n == 0))
        return NIB_OK;
    return nib_fail(
        err, NIB_E_NOFIT,
        "GPUs that share every layer: expected memory for the whole share (--vram), found too little "
        "for %d layers",
        NUM_MAX(c->in_place.n, c->attend_host.n));
}

/* All ranks write their handles, and open those of the others. */
static nib_status join(cuda *c, nib_error *err) {
    enum { TAG = 1 };
    rank_sums *s = c->setup.sums;
    const uint64_t now = sums_now(s);
    memcpy(sums_own(s, now), &c->reduce.handle, sizeof c->reduce.handle);
    sums_publish(s, now, TAG);
    NIB_TRY(sums_wait(s, now, TAG, err));
    for (int r = 0; r < sums_n_rank(s); r++) {
        cuda_handle handle;
        memcpy(&handle, sums_of(s, now, r), sizeof handle);
        if (r != sums_rank(s))
            NIB_TRY(device_cuda_ok(c->base.device, c->k->share_open(&c->reduce.places[r], &handle),
                                   "opening another GPU's memory", err));
    }
    c->reduce.joined = true;
    return NIB_OK;
}

nib_status reduce_begin(cuda *c, nib_error *err) {
    c->reduce.n_part = 0;
    return c->setup.sums && !c->reduce.joined ? join(c, err) : NIB_OK;
}

void reduce_number(cuda *c, int64_t *to, const int64_t *there) {
    *to = c->setup.sums ? sums_pass(c->setup.sums) : 0;
    c->reduce.pass = there;
}

nib_status reduce_end(const cuda *c, nib_error *err) {
    return c->setup.sums ? sums_check(c->setup.sums, err) : NIB_OK;
}

cuda_ranks reduce_next(const cuda *c) {
    const reduce *r = &c->reduce;
    cuda_ranks of;
    memset(&of, 0, sizeof of); /* its padding too: launches are compared byte by byte */
    of.rank = sums_rank(c->setup.sums);
    of.n_rank = sums_n_rank(c->setup.sums);
    memcpy(of.places, r->places, sizeof of.places);
    of.max_pair = MAX_PAIR;
    of.pass = r->pass;
    of.first = r->n_part;
    of.failed = r->failed;
    return of;
}

void reduce_count(cuda *c, int64_t n_row, int64_t n) {
    c->reduce.n_part += cuda_ranks_parts(n_row, n, MAX_PAIR);
}

nib_status launch_reduce(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    cuda_reduce a;
    memset(&a, 0, sizeof a);
    a.x = launch_at(w, o->in);
    a.out = launch_at(w, s->out);
    a.ldx = launch_ld(w, o->in);
    a.ldo = launch_ld(w, s->out);
    a.n_row = w->g->n_row;
    a.n = o->n;
    a.adds = s->tail != NULL;
    a.of = reduce_next(w->c);
    a.leaves = launch_leaves(w, s);
    reduce_count(w->c, a.n_row, a.n);
    return replay_add(w->c, LAUNCH_REDUCE, o, &a, sizeof a, err);
}

/* ---- the head ---- */

bool launch_shares_head(const launch_walk *w, const step *s) {
    return w->c->setup.sums && w->is_head && s->kind == STEP_LINEAR && s->out == REG_LOGITS && s->n_w == 1 &&
           !s->tail && !w->ops[s->first].adds && !fetches_has(w->c, w->g->block, s) &&
           !steps_has_outliers(w->c, w->g->block, s);
}

/* The first of a rank's outputs: each has whole panels. */
static int64_t first_of(const cuda *c, int64_t n, int rank) {
    const int n_rank = sums_n_rank(c->setup.sums);
    return rank == n_rank ? n : num_div_up(n, PACK_PANEL) * rank / n_rank * PACK_PANEL;
}

bool launch_narrow(const launch_walk *w, cuda_linear *a) {
    view *of = &a->w[0];
    const int rank = sums_rank(w->c->setup.sums);
    const int64_t first = first_of(w->c, of->n, rank), end = first_of(w->c, of->n, rank + 1);
    uint64_t before = 0;
    pack_bytes(&of->format, first, of->k, &before); /* the whole matrix did not overflow */
    of->data = (const uint8_t *)of->data + before;
    of->n = end - first;
    a->bias[0] = a->bias[0] ? a->bias[0] + first : NULL;
    a->y[0] += first;
    return end > first;
}

nib_status launch_gather(const launch_walk *w, const step *s, nib_error *err) {
    const op *o = &w->ops[s->first];
    cuda_gather a;
    memset(&a, 0, sizeof a);
    a.x = launch_at(w, REG_LOGITS);
    a.ld = launch_ld(w, REG_LOGITS);
    a.n_row = w->g->n_row;
    a.of = reduce_next(w->c);
    for (int r = 0; r <= a.of.n_rank; r++)
        a.first[r] = first_of(w->c, o->n, r);
    reduce_count(w->c, a.n_row, cuda_gather_width(&a));
    return replay_add(w->c, LAUNCH_GATHER, o, &a, sizeof a, err);
}
