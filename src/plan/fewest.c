/* fewest.c - the formats with the fewest bytes within a loss. */
#include "plan/planner.h"

#include "base/mem.h"
#include "plan/choose.h"

#include <math.h>
#include <string.h>

enum { MAX_NODE = 60000 };

/* The knapsack: bytes take the place of seconds. which: the choice that each option stands for. */
static nib_status solve(const plan_question *q, double max_loss, choose_option *options, int *first,
                        int *which, int *choice, nib_error *err) {
    const choose_problem p = {.options = options,
                              .first = first,
                              .n_block = q->n_block,
                              .max_bytes = INFINITY,
                              .max_time = INFINITY,
                              .max_loss = max_loss,
                              .max_node = MAX_NODE};
    choose_result found;
    for (int b = 0, n = 0; b < q->n_block; b++) {
        const plan_block_facts *f = &q->blocks[b];
        const double activation = plan_activation_loss(f, q->activation ? q->activation : 8);
        for (int c = 0; c < f->n_choice; c++)
            if (c == 0 || f->choices[c].kl >= 0) {
                const double bytes = (double)f->choices[c].bytes + (double)f->choices[c].table_bytes;
                options[n] = (choose_option){
                    .time = bytes, .bytes = bytes, .loss = activation + (c ? f->choices[c].kl : 0)};
                which[n++] = c;
            }
        first[b + 1] = n;
    }
    NIB_TRY(choose(&p, choice, &found, err));
    for (int b = 0; b < q->n_block; b++)
        choice[b] = found.found ? which[first[b] + choice[b]] : 0;
    return NIB_OK;
}

nib_status plan_fewest_bytes(const plan_question *q, double max_loss, int *choice, double *loss,
                             nib_error *err) {
    const size_t max = (size_t)q->n_block * PLAN_MAX_CHOICE;
    choose_option *options = mem_calloc(max, sizeof *options);
    int *first = mem_calloc((size_t)q->n_block + 1 + max, sizeof *first);
    const nib_status status = options && first
                                  ? solve(q, max_loss, options, first, first + q->n_block + 1, choice, err)
                                  : nib_fail_nomem(err, max * sizeof *options, "formats within a loss");
    mem_free(options);
    mem_free(first);
    *loss = 0;
    for (int b = 0; status == NIB_OK && b < q->n_block; b++)
        *loss += choice[b] ? q->blocks[b].choices[choice[b]].kl : 0;
    return status;
}
