/* caps.c - computes the RAM caps that would suffice for a question, whatever its own caps are. */
#include "plan/planner.h"

#include "base/num.h"

void plan_needs(const plan_question *q, plan_outcome *out) {
    uint64_t whole = 0, small = 0;
    for (int b = 0; b < q->n_block; b++) {
        uint64_t min = UINT64_MAX;
        for (int c = 0; c < q->blocks[b].n_choice; c++) {
            const plan_choice *x = &q->blocks[b].choices[c];
            if (c == 0 || (q->may_round && x->kl >= 0))
                min = NUM_MIN(min, x->bytes + x->table_bytes);
        }
        whole += q->blocks[b].choices[0].bytes + q->blocks[b].choices[0].table_bytes;
        small += min;
    }
    out->whole_ram = NUM_MAX(q->opening, plan_ram_beside(q, &q->caches[0], false, false, whole));
    out->min_ram = NUM_MAX(q->opening, plan_ram_beside(q, &q->caches[0], false, false, small));
    out->streamed_ram = NUM_MAX(q->opening, plan_ram_beside(q, &q->caches[0], true, false, 0) + q->placed);
    if (q->is_placed)
        out->min_ram = q->placed_all ? out->whole_ram : out->streamed_ram;
    else if (q->stream)
        out->min_ram = NUM_MIN(out->min_ram, out->streamed_ram);
}
