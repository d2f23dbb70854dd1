/* flow.c - solves and searches the program of a block; see flow.h. */
#include "plan/flow.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

static const char *const lane_names[] = {"link up", "link down", "disk read",     "disk write",
                                         "compute", "RAM",       "device memory", "keys and values"};

const char *flow_lane_name(flow_lane l) {
    return lane_names[l];
}

#define SAME 1e-9 /* relative difference up to which two times are the same */

/* Adds the row cost . x <= best, so that later objectives only choose among the best. */
static void keep(lp_problem *p, double best) {
    const int r = p->n_row++;
    memcpy(p->a[r], p->cost, sizeof p->a[r]);
    p->row_low[r] = -LP_NO_BOUND;
    p->row_high[r] = best + SAME * (fabs(best) + 1e-6);
}

/* Breaks ties: the least disk traffic, the least link traffic, then the most on the device. Where the solver
 * cannot prove the answer of a step, because it is a tie within its tolerance, the answer before it stays. */
static void settle(const flow_case *c, lp_problem p, lp_result *r) {
    static const flow_lane lanes[2][2] = {{FLOW_READ, FLOW_WRITE}, {FLOW_UP, FLOW_DOWN}};
    double best = r->objective;
    for (int step = 0; step < 3; step++) {
        double sum[FLOW_N_COLUMN] = {0}, one[FLOW_N_COLUMN];
        lp_result next;
        nib_error why;
        keep(&p, best);
        for (int i = 0; i < 2 && step < 2; i++) {
            flow_lane_cost(c, lanes[step][i], one);
            for (int k = 0; k < FLOW_N_SHARE; k++)
                sum[k] += one[k];
        }
        if (step == 2)
            sum[FLOW_WG] = sum[FLOW_CG] = sum[FLOW_HG] = -1;
        memcpy(p.cost, sum, sizeof sum);
        if (lp_solve(&p, &next, &why) != NIB_OK || !next.feasible)
            return;
        best = next.objective;
        memcpy(r->x, next.x, sizeof r->x);
    }
}

static flow_lane busiest(const double *lane) {
    flow_lane best = FLOW_UP;
    for (int l = 0; l < FLOW_N_LANE; l++)
        best = lane[l] > lane[best] * (1 + SAME) ? (flow_lane)l : best;
    return best;
}

static void report(const flow_case *c, const lp_result *r, const int first_capacity[4], flow_answer *out) {
    const double l = c->shape->n_layer, block = (double)c->batch * c->n_batch;
    const double caps[] = {c->caps.device, c->caps.ram, c->caps.disk};
    const bool refill = c->rule == FLOW_REFILL;
    memcpy(out->share, r->x, sizeof out->share);
    out->prompt_s = refill ? 0 : l * r->x[FLOW_T_PROMPT];
    out->token_s = l * (refill ? c->n_gen : c->n_gen - 1) * r->x[FLOW_T_TOKEN];
    out->tok_s = block * c->n_gen / (out->prompt_s + out->token_s);
    flow_lanes(c, out->share, out->lane);
    for (int phase = 0; phase < 2; phase++)
        out->binds[phase] = busiest(out->lane[phase]);
    for (int tier = 0; tier < 3; tier++) {
        double each = 0; /* of the seconds of a block's sequence for a capacity's share */
        for (int i = first_capacity[tier]; i < first_capacity[tier + 1]; i++)
            each -= r->dual[i];
        const double gained = caps[tier] > 0 ? each / caps[tier] * (double)(1 << 30) : 0;
        out->more[tier] = gained * out->tok_s * out->tok_s / c->n_gen;
    }
}

nib_status flow_solve(const flow_case *c, flow_answer *out, nib_error *err) {
    lp_problem p;
    lp_result r;
    int first_capacity[4];
    *out = (flow_answer){.batch = c->batch, .n_batch = c->n_batch};
    flow_program(c, &p, first_capacity);
    NIB_TRY(lp_solve(&p, &r, err));
    if (!r.feasible)
        return NIB_OK;
    const double times[] = {r.x[FLOW_T_PROMPT], r.x[FLOW_T_TOKEN]};
    settle(c, p, &r);
    r.x[FLOW_T_PROMPT] = times[0];
    r.x[FLOW_T_TOKEN] = times[1];
    out->feasible = true;
    report(c, &r, first_capacity, out);
    return NIB_OK;
}

nib_status flow_enumerate(const flow_case *c, const flow_space *space, flow_each each, void *user,
                          int *n_solved, nib_error *err) {
    flow_case at = *c;
    int n = 0;
    for (int i = 0; i < space->n; i++) {
        at.batch = space->batches[i];
        for (at.n_batch = 1; at.n_batch <= space->max_n_batch; at.n_batch++, n++) {
            flow_answer a;
            NIB_TRY(flow_solve(&at, &a, err));
            if (!a.feasible)
                break;
            each(user, &at, &a);
        }
    }
    if (n_solved)
        *n_solved = n;
    return NIB_OK;
}
