/* placement.c - what nib_engine_placement answers: the pager's decision, gathered once by block, format and
 * tier. */
#include "engine/state.h"

#include "base/mem.h"
#include "exec/shortlist.h"
#include "quant/recipe.h"

#include <string.h>

/* Both are of one file type, or rounded to one format. */
static bool same_format(const weight *a, const weight *b) {
    if (weight_is_rounded(a) != weight_is_rounded(b))
        return false;
    return weight_is_rounded(a)
               ? !memcmp(&a->format, &b->format, sizeof a->format) && a->by_column == b->by_column &&
                     weight_is_second(a) == weight_is_second(b)
               : a->type == b->type;
}

/* Different formats of a block's own weights. */
static size_t count_formats(const block *blk) {
    size_t n = 0;
    for (int w = 0; w < blk->n_weight; w++) {
        bool seen = blk->weights[w].shared_block >= 0;
        for (int i = 0; i < w && !seen; i++)
            seen = blk->weights[i].shared_block < 0 && same_format(&blk->weights[i], &blk->weights[w]);
        n += !seen;
    }
    return n;
}

static size_t max_slices(const layout *lay) {
    size_t max = 0;
    for (int b = 0; b < layout_n_block(lay); b++)
        max += 2 * count_formats(layout_block(lay, b)); /* in RAM and on disk */
    return max + 1;                                     /* the output head's sketch */
}

uint64_t engine_placement_bytes(const layout *lay) {
    return max_slices(lay) * sizeof(nib_slice) + (2 * (size_t)layout_n_block(lay) + 1) * PACK_NAME;
}

nib_status engine_alloc_placement(nib_engine *e, nib_error *err) {
    const size_t max = max_slices(e->layout);
    const size_t n_format =
        2 * (size_t)layout_n_block(e->layout) + 1; /* each is rounded to one stack at most; the sketch */
    const uint64_t bytes = engine_placement_bytes(e->layout);
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, bytes, err));
    e->tables += bytes;
    e->slices = mem_calloc(max, sizeof *e->slices);
    e->formats = mem_calloc(n_format, sizeof *e->formats);
    return e->slices && e->formats ? NIB_OK : nib_fail_nomem(err, bytes, "the placement");
}

/* The block that shares weight w of block b; NULL: none. */
static const char *other_user(const layout *lay, int b, int w) {
    for (int i = b + 1; i < layout_n_block(lay); i++) {
        const block *blk = layout_block(lay, i);
        for (int j = 0; j < blk->n_weight; j++)
            if (blk->weights[j].shared_block == b && blk->weights[j].shared_index == w)
                return blk->name;
    }
    return NULL;
}

/* The one among e->formats. */
static const char *kept_name(nib_engine *e, const char name[PACK_NAME]) {
    size_t i = 0;
    while (i < e->n_format && strcmp(e->formats[i], name))
        i++;
    if (i == e->n_format)
        memcpy(e->formats[e->n_format++], name, PACK_NAME);
    return e->formats[i];
}

static const char *format_name(nib_engine *e, const weight *w) {
    char name[PACK_NAME];
    if (!weight_is_rounded(w))
        return type_get(w->type)->name;
    recipe_slice_name(&w->format, w->by_column, weight_is_second(w), name);
    return kept_name(e, name);
}

/* To the slice of the same format and tier among slices[first..n), or as a new one. */
static void add(nib_engine *e, size_t first, nib_slice what) {
    size_t i = first;
    if (what.bytes == 0)
        return;
    while (i < e->n_slice && (e->slices[i].tier != what.tier || e->slices[i].format != what.format))
        i++;
    if (i == e->n_slice) {
        e->slices[e->n_slice++] = what;
        return;
    }
    e->slices[i].bytes += what.bytes;
    if (what.also)
        e->slices[i].also = what.also;
}

static void add_sketch(nib_engine *e) {
    char name[PACK_NAME];
    const weight *head;
    uint64_t bytes;
    view sketch;
    if (!e->has_sketch || !shortlist_sketch(e->layout, e->n_best, &head, &sketch, &bytes))
        return;
    pack_name(&sketch.format, name);
    add(e, e->n_slice,
        (nib_slice){layout_block(e->layout, layout_n_block(e->layout) - 1)->name, NULL, -1,
                    kept_name(e, name), bytes, NIB_TIER_RAM});
}

void engine_fill_placement(nib_engine *e) {
    for (int b = 0; b < layout_n_block(e->layout); b++) {
        const block *blk = layout_block(e->layout, b);
        size_t first = e->n_slice;
        for (int w = 0; w < blk->n_weight; w++) {
            const char *also = other_user(e->layout, b, w), *format;
            uint64_t kept, on_disk;
            if (blk->weights[w].shared_block >= 0)
                continue;
            format = format_name(e, &blk->weights[w]);
            pager_where(e->pager, b, w, &kept, &on_disk);
            add(e, first, (nib_slice){blk->name, also, blk->layer, format, kept, NIB_TIER_RAM});
            add(e, first, (nib_slice){blk->name, also, blk->layer, format, on_disk, NIB_TIER_DISK});
        }
    }
    add_sketch(e);
}

size_t nib_engine_placement(const nib_engine *e, const nib_slice **slices) {
    *slices = e->slices;
    return e->n_slice;
}
