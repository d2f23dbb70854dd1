/* attend_host.c - see attend_host.h. The processor's back end is that of in_place.c. Its registers are in
 * page-locked memory, so the copies go from register to register. Both have rows of two cells (visit.bank).
 */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "exec/cut.h"

nib_status attend_host_open(cuda *c, nib_error *err) {
    const size_t n_block = (size_t)layout_n_block(c->setup.layout);
    c->attend_host.cut = mem_calloc(n_block, sizeof *c->attend_host.cut);
    return c->attend_host.cut ? NIB_OK : nib_fail_nomem(err, n_block, "the list of blocks that are cut");
}

void attend_host_close(cuda *c) {
    mem_free(c->attend_host.cut);
    c->attend_host = (attend_host){.cut = NULL};
}

void attend_host_follow(cuda *c, const homes_split *split) {
    c->attend_host.n = split->n_attended;
    for (int b = 0; b < split->n_block; b++)
        c->attend_host.cut[b] = split->of[b].attended;
    c->base.cut = split->n_attended > 0 ? c->attend_host.cut : NULL;
}

void attend_host_begin(cuda *c) {
    c->attend_host.n_cell = 0;
}

static const op *attention_of(const cuda *c, int b) {
    const program *p = &layout_block(c->setup.layout, b)->program;
    return &p->ops[cut_at(p)];
}

/* Queues the copy of a register's rows of a cell between the GPU and the processor. */
static nib_status copy_rows(cuda *c, reg r, const visit *v, bool up, nib_error *err) {
    device *d = c->base.device;
    backend *host = c->in_place.host;
    const uint64_t row = (uint64_t)model_reg_width(cuda_model(c), r) * sizeof(float);
    const uint64_t pitch = (uint64_t)c->mem.ld[r] * sizeof(float);
    float *here = c->mem.reg[r] + v->bank * c->mem.ld[r];
    float *there = host->kind->register_at(host, r, v->bank);
    return up ? d->kind->copy_rows(d, DEVICE_LOAD, here, pitch, there, row, row, v->n_row, err)
              : d->kind->copy_rows(d, DEVICE_STORE, there, row, here, pitch, row, v->n_row, err);
}

/* Queues the copies of the first waiting cell's inputs. Those of the next cell come after the processor has
 * waited for these, because a wait is for all of a lane. */
static nib_status send_first(cuda *c, nib_error *err) {
    attend_host *a = &c->attend_host;
    device *d = c->base.device;
    const visit *v = &a->cells[0].of;
    const op *o = attention_of(c, v->block);
    NIB_TRY(d->kind->follow(d, DEVICE_STORE, a->cells[0].computed, err));
    NIB_TRY(copy_rows(c, o->in, v, false, err));
    NIB_TRY(copy_rows(c, o->in2, v, false, err));
    if (o->in3 != REG_NONE)
        NIB_TRY(copy_rows(c, o->in3, v, false, err));
    return d->kind->mark(d, DEVICE_STORE, &a->arrived, err);
}

nib_status attend_host_send(cuda *c, nib_error *err) {
    attend_host *a = &c->attend_host;
    device *d = c->base.device;
    a->cells[a->n_cell].of = c->now.run.visit;
    NIB_TRY(d->kind->mark(d, DEVICE_COMPUTE, &a->cells[a->n_cell].computed, err));
    return ++a->n_cell == 1 ? send_first(c, err) : NIB_OK;
}

nib_status attend_host_run(cuda *c, const backend_run *r, nib_error *err) {
    attend_host *a = &c->attend_host;
    device *d = c->base.device;
    backend *host = c->in_place.host;
    backend_run now = *r;
    NIB_TRY(d->kind->wait(d, a->arrived, err));
    a->cells[0] = a->cells[1];
    if (--a->n_cell > 0)
        NIB_TRY(send_first(c, err));
    now.weights.views = NULL;
    const double start = c->spans ? time_now() : 0;
    NIB_TRY(host->kind->run(host, &now, err));
    spans_of_host(c, "attention on the processor", start);
    return r->visit.cache_only ? NIB_OK
                               : copy_rows(c, attention_of(c, r->visit.block)->out, &r->visit, true, err);
}
