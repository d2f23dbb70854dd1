/* placement.c - the result of nib_engine_placement: the pager's placement, summed by block, format and tier.
 */
#include "engine/placement.h"

#include "base/mem.h"
#include "exec/shortlist.h"
#include "numbers/recipe.h"

#include <string.h>

/* Whether both have the same file type, or are rounded to the same format. */
static bool same_format(const weight *a, const weight *b) {
    if (weight_is_rounded(a) != weight_is_rounded(b))
        return false;
    return weight_is_rounded(a)
               ? !memcmp(&a->format, &b->format, sizeof a->format) && a->uses_imatrix == b->uses_imatrix &&
                     weight_is_second(a) == weight_is_second(b)
               : a->type == b->type;
}

/* Number of different formats of a block's own weights. */
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
        max += 3 * count_formats(layout_block(lay, b)); /* each in VRAM, in RAM and on disk */
    return max + 1;                                     /* the output head's sketch */
}

uint64_t placement_bytes(const layout *lay) {
    return max_slices(lay) * sizeof(nib_slice) + (2 * (size_t)layout_n_block(lay) + 1) * PACK_NAME;
}

nib_status placement_open(placement *p, const layout *lay, ledger *l, nib_error *err) {
    const size_t n_format =
        2 * (size_t)layout_n_block(lay) + 1; /* two slices of a stack for each block, and the sketch */
    const uint64_t bytes = placement_bytes(lay);
    NIB_TRY(ledger_charge(l, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    p->slices = mem_calloc(max_slices(lay), sizeof *p->slices);
    p->formats = mem_calloc(n_format, sizeof *p->formats);
    return p->slices && p->formats ? NIB_OK : nib_fail_nomem(err, bytes, "the placement");
}

void placement_close(placement *p) {
    mem_free(p->slices);
    mem_free(p->formats);
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

/* The stored copy of `name` in p->formats. */
static const char *kept_name(placement *p, const char name[PACK_NAME]) {
    size_t i = 0;
    while (i < p->n_format && strcmp(p->formats[i], name))
        i++;
    if (i == p->n_format)
        memcpy(p->formats[p->n_format++], name, PACK_NAME);
    return p->formats[i];
}

static const char *format_name(placement *p, const weight *w) {
    char name[PACK_NAME];
    if (!weight_is_rounded(w))
        return type_get(w->type)->name;
    recipe_slice_name(&w->format, w->uses_imatrix, weight_is_second(w), name);
    return kept_name(p, name);
}

/* Adds bytes to the entry of the same format and tier among slices[first..n), or appends a new entry. */
static void add(placement *p, size_t first, nib_slice what) {
    size_t i = first;
    if (what.bytes == 0)
        return;
    while (i < p->n_slice && (p->slices[i].tier != what.tier || p->slices[i].format != what.format))
        i++;
    if (i == p->n_slice) {
        p->slices[p->n_slice++] = what;
        return;
    }
    p->slices[i].bytes += what.bytes;
    if (what.also)
        p->slices[i].also = what.also;
}

static void add_sketch(placement *p, const layout *lay, int32_t n_best, bool on_device) {
    char name[PACK_NAME];
    const weight *head;
    uint64_t bytes;
    view sketch;
    if (on_device ? !shortlist_device_sketch(lay, n_best, true, &head, &sketch, &bytes)
                  : !n_best || !shortlist_sketch(lay, n_best, &head, &sketch, &bytes))
        return;
    pack_name(&sketch.format, name);
    add(p, p->n_slice,
        (nib_slice){layout_block(lay, layout_n_block(lay) - 1)->name, NULL, -1, kept_name(p, name), bytes,
                    on_device ? NIB_TIER_VRAM : NIB_TIER_RAM});
}

void placement_fill(placement *p, const layout *lay, const pager *weights, const device_store *on,
                    int32_t n_best, bool on_device) {
    for (int b = 0; b < layout_n_block(lay); b++) {
        const block *blk = layout_block(lay, b);
        size_t first = p->n_slice;
        for (int w = 0; w < blk->n_weight; w++) {
            const char *also = other_user(lay, b, w), *format;
            if (blk->weights[w].shared_block >= 0)
                continue;
            format = format_name(p, &blk->weights[w]);
            const bool *copied = on && blk->weights[w].n_expert > 1 ? device_store_copied(on) : NULL;
            pager_bytes of = pager_where(weights, b, w, copied);
            if (on && device_store_keeps(on, b, w))
                of = (pager_bytes){.copied = of.kept + of.on_disk + of.copied};
            add(p, first, (nib_slice){blk->name, also, blk->layer, format, of.copied, NIB_TIER_VRAM});
            add(p, first, (nib_slice){blk->name, also, blk->layer, format, of.kept, NIB_TIER_RAM});
            add(p, first, (nib_slice){blk->name, also, blk->layer, format, of.on_disk, NIB_TIER_DISK});
        }
    }
    add_sketch(p, lay, n_best, on_device);
}
