/* fakecuda_recurrent.c - the fake table's ops with a recurrent state, by the processor's kernels. */
#include "support/fakecuda_parts.h"

#include "exec/recurrent.h"

#include <string.h>

static op op_of(const cuda_recurrent *a) {
    op o = {.kind = a->kind, .n = a->n, .k = a->ldx};
    o.u.rec.at = a->at;
    o.u.rec.n_tap = a->n_tap;
    o.u.rec.silu = a->silu;
    o.u.rec.n_head = a->n_head;
    o.u.rec.n_group = a->n_group;
    o.u.rec.d_head = a->d_head;
    o.u.rec.d_state = a->d_state;
    o.u.rec.dt_min = a->dt_min;
    o.u.rec.dt_max = a->dt_max;
    o.u.rec.by_channel = a->by_channel;
    o.u.rec.tiled = a->tiled;
    return o;
}

static const float *row_of(const float *x, int64_t ld, int64_t r) {
    return x ? (const float *)real(x) + r * ld : NULL;
}

static float *state_of(const cuda_recurrent *a, int32_t number) {
    return (float *)(void *)((uint8_t *)real(a->origin) + (int64_t)number * a->unit);
}

/* Row by row. A row that does not continue the sequence before begins its own. */
int fake_recurrent(const cuda_recurrent *a, cuda_stream s) {
    LAUNCH(s);
    KEEP(recurrent, fake_recurrent);
    if ((a->norm && (a->kind != OP_DELTA || a->d_head % 32 || a->d_head > 256 || a->n_head < 2)) ||
        (a->times && a->kind != OP_CONV) || (a->leaves.data && (!a->gate || a->n_row > 1 || a->n % 32)))
        return fake_misuse("a recurrent op is finished that cannot be, or leaves codes of several rows");
    const op o = op_of(a);
    const int32_t *position = real(a->position), *state = real(a->state), *save = real(a->save);
    for (int64_t r = 0; r < a->n_row; r++) {
        if (a->times)
            kernels_table()->gate(ACT_NONE, row_of(a->times, a->ldt, r), row_of(a->x, a->ldx, r),
                                  (float *)real(a->x) + r * a->ldx, a->n);
        const recurrent_rows one = {.x = row_of(a->x, a->ldx, r),
                                    .x2 = row_of(a->x2, a->ldx2, r),
                                    .x3 = row_of(a->x3, a->ldx3, r),
                                    .out = (float *)real(a->out) + r * a->ldo,
                                    .n_row = 1,
                                    .begins = position[r] == 0,
                                    .state = state_of(a, state[r]),
                                    .w = real(a->w),
                                    .b = real(a->b),
                                    .skip = real(a->skip)};
        if (r > 0 && state[r] == state[r - 1] && position[r] != position[r - 1] + 1)
            return fake_misuse("rows of a sequence are not in the order of their positions");
        if (r > 0 && state[r] != state[r - 1] && a->together)
            return fake_misuse("rows of several sequences are together");
        recurrent_run(kernels_table(), &o, &one, 0, recurrent_n_part(&o));
        if (save[r] != CUDA_NO_STATE)
            recurrent_copy(&o, one.state, state_of(a, save[r]), 0, recurrent_n_part(&o));
        if (a->norm)
            kernels_table()->norm(NORM_RMS, one.out, real(a->norm), NULL, one.out, a->n, a->n_head, false,
                                  a->eps);
        if (a->gate)
            kernels_table()->gate(a->act, row_of(a->gate, a->ldg, r), one.out, one.out, a->n);
    }
    if (a->leaves.data)
        fake_leave(&a->leaves, real(a->out), a->ldo, 1, a->n, false);
    return 0;
}
