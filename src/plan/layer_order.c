/* layer_order.c - the order in which layers are left out, and the loss without them. */
#include "plan/planner.h"

#include "base/num.h"

/* The order is given by the first of these signals that every layer has: the measured order in which layers
 * were left out together; the relative change of the residual stream by the layer, which predicts the loss
 * best (docs/paper-mcap.md); the loss without this layer alone; MCAP's score. */
typedef double (*signal_fn)(const plan_block_facts *f);

static double by_sweep(const plan_block_facts *f) {
    return f->place;
}
static double by_change(const plan_block_facts *f) {
    return f->change;
}
static double by_cost(const plan_block_facts *f) {
    return f->kl_left_out;
}
static double by_score(const plan_block_facts *f) {
    return f->importance;
}

static bool every_layer_has(const plan_question *q, signal_fn signal) {
    bool all = true;
    for (int b = 0; b < q->n_block; b++)
        all = all && (!q->blocks[b].is_layer || signal(&q->blocks[b]) >= 0);
    return all;
}

bool plan_has_sweep(const plan_question *q) {
    return every_layer_has(q, by_sweep);
}

bool plan_has_scores(const plan_question *q) {
    return every_layer_has(q, by_score);
}

int plan_layer_order(const plan_question *q, int *order) {
    static const signal_fn signals[] = {by_sweep, by_change, by_cost};
    signal_fn rank_of = by_score;
    int n = 0;
    for (size_t i = NUM_COUNT(signals); i-- > 0;)
        rank_of = every_layer_has(q, signals[i]) ? signals[i] : rank_of;
    for (int b = 0; b < q->n_block; b++) {
        if (!q->blocks[b].is_layer)
            continue;
        int i = n++;
        const double r = rank_of(&q->blocks[b]);
        for (; i > 0 && rank_of(&q->blocks[order[i - 1]]) > r; i--)
            order[i] = order[i - 1];
        order[i] = b;
    }
    return n;
}

double plan_loss_without(const plan_question *q, const int *order, int n) {
    double sum = 0;
    const plan_block_facts *last = &q->blocks[order[n - 1]];
    if (last->place == n - 1)
        return last->kl_fewer;
    for (int i = 0; i < n && sum >= 0; i++) {
        const double kl = q->blocks[order[i]].kl_left_out;
        sum = kl < 0 ? -1 : sum + kl;
    }
    return sum;
}
