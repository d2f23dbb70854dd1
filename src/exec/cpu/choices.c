/* choices.c - see choices.h. */
#include "exec/cpu/choices.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

static bool same_shape(const weight *a, const weight *b) {
    return a->n == b->n && a->k == b->k && !memcmp(&a->format, &b->format, sizeof a->format);
}

static bool has_choice(const weight *w) {
    return !w->vector && w->format.layout == PACK_TILE;
}

/* The weight that a choice is for. */
typedef struct chosen_for {
    const weight *w;
    int slice_bits; /* bits of one slice of the activations */
} chosen_for;

/* Weight number `at` of the model, in the order of choices.of. */
static chosen_for weight_at(const layout *lay, const choices *r, const uint8_t *act_bits, int at) {
    int b = layout_n_block(lay) - 1;
    while (r->first[b] > at)
        b--;
    return (chosen_for){&layout_block(lay, b)->weights[at - r->first[b]], NUM_MIN(act_bits[b], 8)};
}

/* list has capacity for every weight, so pointers into it stay valid. */
static void choose_all(choices *r, const layout *lay, const kernel_map *p, const kernel_table *t,
                       const uint8_t *act_bits, int n_weight) {
    for (int i = 0; i < n_weight; i++) {
        const chosen_for at = weight_at(lay, r, act_bits, i);
        if (!has_choice(at.w))
            continue;
        for (int j = 0; j < i && !r->of[i]; j++) {
            const chosen_for other = weight_at(lay, r, act_bits, j);
            if (r->of[j] && same_shape(at.w, other.w) && at.slice_bits == other.slice_bits)
                r->of[i] = r->of[j];
        }
        if (r->of[i])
            continue;
        kernel_map_choice(p, t, at.w->n, at.w->k, &at.w->format, at.slice_bits, &r->list[r->n]);
        r->of[i] = &r->list[r->n++];
    }
}

nib_status choices_open(choices *r, const layout *lay, const kernel_map *p, const kernel_table *t,
                        const uint8_t *act_bits, nib_error *err) {
    int n_weight = 0;
    memset(r, 0, sizeof *r);
    for (int b = 0; b < layout_n_block(lay); b++)
        n_weight += layout_block(lay, b)->n_weight;
    r->first = mem_calloc((size_t)layout_n_block(lay), sizeof *r->first);
    r->of = mem_calloc((size_t)n_weight, sizeof *r->of);
    r->list = mem_calloc((size_t)n_weight, sizeof *r->list);
    if (!r->first || !r->of || !r->list) {
        choices_close(r);
        return nib_fail_nomem(err, (size_t)n_weight * (sizeof *r->of + sizeof *r->list),
                              "the kernels' choices");
    }
    for (int b = 1; b < layout_n_block(lay); b++)
        r->first[b] = r->first[b - 1] + layout_block(lay, b - 1)->n_weight;
    choose_all(r, lay, p, t, act_bits, n_weight);
    return NIB_OK;
}

void choices_close(choices *r) {
    mem_free(r->first);
    mem_free(r->of);
    mem_free(r->list);
    memset(r, 0, sizeof *r);
}
