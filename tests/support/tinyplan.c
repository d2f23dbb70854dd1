/* tinyplan.c - see tinyplan.h. */
#include "tinyplan.h"

#include "model/reformat.h"
#include "quant/recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static plan_slice slice_of(const block *b, bool second, int tier) {
    plan_slice s = {.tier = tier};
    for (int i = 0; i < b->n_weight; i++) {
        const weight *w = &b->weights[i];
        if (weight_is_second(w) != second)
            continue;
        s.bytes += (w->bytes + 63) / 64 * 64;
        if (!w->vector && w->shared_block < 0)
            recipe_slice_name(&w->format, w->by_column, second, s.format);
    }
    if (!s.format[0]) /* a block without matrices of its own */
        snprintf(s.format, sizeof s.format, "file");
    return s;
}

void tiny_plan_make(tiny_plan *h, const char *path, const char *const *recipes, int n, int first,
                    int second) {
    const logger silent = {0};
    nib_error err = {0};
    model *m = NULL;
    memset(h, 0, sizeof *h);
    h->p = (plan){.model = "tiny", .cap = {NIB_AUTO, NIB_AUTO, NIB_AUTO}, .mode = 'a', .blocks = h->blocks};
    if (model_open(path, &silent, &m, &err))
        fail_msg("%s", err.message);
    h->p.n_block = model_n_block(m);
    assert_true(h->p.n_block <= TINY_PLAN_BLOCKS);
    for (int b = 0; b < h->p.n_block; b++) {
        const block *blk = model_block(m, b);
        plan_block *to = &h->blocks[b];
        assert_int_equal(model_reformat(m, b, recipes[b % n], &err), NIB_OK);
        *to = (plan_block){.activation = 8, .importance = -1, .n_slice = 1};
        snprintf(to->name, sizeof to->name, "%s", blk->name);
        to->slices[0] = slice_of(blk, false, first);
        if (!strchr(recipes[b % n], '+'))
            snprintf(to->slices[0].format, sizeof to->slices[0].format, "%s", recipes[b % n]);
        const plan_slice more = slice_of(blk, true, second);
        if (more.format[0] == '+')
            to->slices[to->n_slice++] = more;
    }
    model_close(m);
}

void tiny_plan_leave_out(tiny_plan *h, int layer) {
    h->p.mode = 'b';
    h->blocks[layer + 1].left_out = true;
    h->blocks[layer + 1].n_slice = 0;
}
