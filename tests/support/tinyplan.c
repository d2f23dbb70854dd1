/* tinyplan.c - see tinyplan.h. */
#include "tinyplan.h"

#include "engine.h"
#include "tempdir.h"
#include "tinylayout.h"

#include "nib_tools.h"
#include "numbers/recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static plan_slice slice_of(const block *b, bool second, int tier) {
    plan_slice s = {.tier = tier};
    for (int i = 0; i < b->n_weight; i++) {
        const weight *w = &b->weights[i];
        if (weight_is_second(w) != second)
            continue;
        s.bytes += (w->bytes + 63) / 64 * 64;
        if (!w->vector && w->shared_block < 0)
            recipe_slice_name(&w->format, w->uses_imatrix, second, s.format);
    }
    if (!s.format[0]) /* a block without matrices of its own */
        snprintf(s.format, sizeof s.format, "file");
    return s;
}

void tiny_plan_make(tiny_plan *h, const char *path, const char *const *recipes, int n, int first,
                    int second) {
    tiny_layout of = tiny_layout_open(path);
    layout_part parts[TINY_PLAN_BLOCKS] = {0};
    memset(h, 0, sizeof *h);
    h->p = (plan){.model = "tiny", .cap = {NIB_AUTO, NIB_AUTO, NIB_AUTO}, .mode = 'a', .blocks = h->blocks};
    h->p.n_block = layout_n_block(of.l);
    assert_true(h->p.n_block <= TINY_PLAN_BLOCKS);
    for (int b = 0; b < h->p.n_block; b++)
        snprintf(parts[b].format, sizeof parts[b].format, "%s", recipes[b % n]);
    tiny_layout_change(&of, &(layout_choice){.parts = parts});
    for (int b = 0; b < h->p.n_block; b++) {
        const block *blk = layout_block(of.l, b);
        plan_block *to = &h->blocks[b];
        *to = (plan_block){.activation = 8, .importance = -1, .n_slice = 1};
        snprintf(to->name, sizeof to->name, "%s", blk->name);
        to->slices[0] = slice_of(blk, false, first);
        if (!strchr(recipes[b % n], '+'))
            snprintf(to->slices[0].format, sizeof to->slices[0].format, "%s", recipes[b % n]);
        const plan_slice more = slice_of(blk, true, second);
        if (more.format[0] == '+')
            to->slices[to->n_slice++] = more;
    }
    tiny_layout_close(&of);
}

const char *tiny_plan_make_mixed(tiny_plan *h, const char *fixture, const char *const *recipes, int n) {
    const char *path = temp_path("mixed.gguf");
    const nib_engine_options o = engine_usual();
    const nib_quantize_options q = {.out = path, .permute = true, .share8 = 30, .outlier = 1e-6};
    nib_quantize_report r;
    nib_error err;
    unlink(path);
    if (nib_quantize(fixture, &o, &q, &r, &err) != NIB_OK)
        fail_msg("%s: %s", fixture, err.message);
    tiny_plan_make(h, path, recipes, n, NIB_TIER_RAM, NIB_TIER_RAM);
    for (int b = 0; b < h->p.n_block; b++)
        h->blocks[b].activation = NIB_ACT_AX;
    return path;
}

void tiny_plan_leave_out(tiny_plan *h, int layer) {
    h->p.mode = 'b';
    h->blocks[layer + 1].left_out = true;
    h->blocks[layer + 1].n_slice = 0;
}
