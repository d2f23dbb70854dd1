/* pager_layout.c - where every weight's bytes are: the image, its parts, and which of them stay.
 *
 * The image is cut the same way for every budget, so that one packed file serves them all: vectors, then each
 * block's group of matrices, then the output head in parts of rows no larger than the largest group, then
 * tables that are only looked up, in rows too. Parts of rows follow each other without a gap (their bytes are
 * whole pages), so in a map of the whole image their matrix is one piece. */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

enum { USE_PRODUCT = 1, USE_LOOKUP = 2 };

/* How the programs of the weight's own block use it. */
static int use_of(const block *blk, int w) {
    int use = 0;
    for (int i = 0; i < blk->program.n_op; i++) {
        const op *o = &blk->program.ops[i];
        if (o->w != w)
            continue;
        use |= o->kind == OP_EMBED || o->kind == OP_EMBED_POS ? USE_LOOKUP : USE_PRODUCT;
    }
    return use;
}

void pager_resolve(const pager *p, int *b, int *w) {
    const weight *at = &model_block(p->m, *b)->weights[*w];
    if (at->shared_block >= 0) {
        *b = at->shared_block;
        *w = at->shared_index;
    }
}

place *pager_place(const pager *p, int b, int w) {
    pager_resolve(p, &b, &w);
    return &p->places[p->first_weight[b] + w];
}

static uint64_t whole_bytes(const weight *w) {
    uint64_t bytes = 0;
    if (w->vector)
        return pager_round64((uint64_t)w->k * sizeof(float));
    return pack_bytes(&w->format, w->n, w->k, &bytes) ? pager_round64(bytes) : UINT64_MAX;
}

nib_status pager_make_tables(pager *p, nib_error *err) {
    int n_weight = 0;
    for (int b = 0; b < p->n_block; b++)
        n_weight += model_block(p->m, b)->n_weight;
    size_t n = (size_t)n_weight, nb = (size_t)p->n_block;
    p->tables =
        (nb + 1 + nb) * sizeof(int) + n * (sizeof *p->places + sizeof *p->views + sizeof *p->head_use);
    nib_status status = ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, p->tables, err);
    if (status != NIB_OK) {
        p->tables = 0;
        return status;
    }
    p->first_weight = mem_calloc(nb + 1, sizeof(int));
    p->group = mem_calloc(nb, sizeof(int));
    p->places = mem_calloc(n, sizeof *p->places);
    p->views = mem_calloc(n, sizeof *p->views);
    p->head_use = mem_calloc(n, sizeof *p->head_use);
    if (!p->first_weight || !p->group || !p->places || !p->views || !p->head_use)
        return nib_fail_nomem(err, p->tables, "the pager's tables");
    for (int b = 0; b < p->n_block; b++) {
        p->first_weight[b + 1] = p->first_weight[b] + model_block(p->m, b)->n_weight;
        p->group[b] = -1;
    }
    return NIB_OK;
}

/* ---- the image ---- */

/* Room in the image, at a page; false when it would overflow. */
static bool append(pager *p, uint64_t n_byte, uint64_t *at, uint64_t *unit) {
    *at = p->image_bytes;
    *unit = p->n_unit;
    p->n_unit += pager_n_unit(n_byte);
    return n_byte <= UINT64_MAX - FILE_ALIGN &&
           num_add_u64(p->image_bytes, pager_round_page(n_byte), &p->image_bytes);
}

/* A part of `what->bytes` bytes behind the others. */
static bool add_part(pager *p, size_t *cap, weight_part what) {
    if (what.bytes > UINT64_MAX / 4)
        return false;
    what.bytes = pager_round_page(what.bytes);
    if (!append(p, what.bytes, &what.image, &what.unit) ||
        mem_grow((void **)&p->parts, cap, (size_t)p->n_part + 1, sizeof *p->parts) != 0)
        return false;
    p->parts[p->n_part++] = what;
    return true;
}

static void cut_vectors(pager *p) {
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            if (!blk->weights[i].vector || blk->weights[i].shared_block >= 0)
                continue;
            p->places[p->first_weight[b] + i].offset = p->vector_bytes;
            p->vector_bytes += whole_bytes(&blk->weights[i]);
        }
    }
    uint64_t at, unit;
    p->vector_bytes = pager_round_page(p->vector_bytes);
    append(p, p->vector_bytes, &at, &unit);
}

static bool cut_block(pager *p, int b, size_t *cap) {
    const block *blk = model_block(p->m, b);
    weight_part group = {.block = b, .w = -1, .order = -1};
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        place *at = &p->places[p->first_weight[b] + i];
        if (w->vector || w->shared_block >= 0)
            continue;
        at->by_row = (use_of(blk, i) & USE_PRODUCT) == 0;
        if (at->by_row || p->head_use[p->first_weight[b] + i])
            continue;
        at->grouped = true;
        at->offset = group.bytes;
        if (!num_add_u64(group.bytes, whole_bytes(w), &group.bytes))
            return false;
    }
    if (group.bytes == 0)
        return true;
    p->group[b] = p->n_part;
    if (!add_part(p, cap, group))
        return false;
    p->slot_bytes = NUM_MAX(p->slot_bytes, p->parts[p->n_part - 1].bytes);
    return true;
}

/* The fewest panels that are whole pages. */
static uint64_t panels_a_page(uint64_t panel) {
    uint64_t n = 1;
    while (n < FILE_ALIGN / 64 && n * panel % FILE_ALIGN)
        n *= 2;
    return n;
}

/* A matrix of its own in parts of rows that fit `most` bytes, or a few more where that is less than a page of
 * panels. */
static bool cut_rows(pager *p, int b, int j, uint64_t most, bool table, size_t *cap) {
    const weight *w = &model_block(p->m, b)->weights[j];
    place *at = &p->places[p->first_weight[b] + j];
    uint64_t panel = 0;
    if (!pack_bytes(&w->format, PACK_PANEL, w->k, &panel))
        return false;
    uint64_t step = panels_a_page(panel), n_panel = NUM_MAX(most / NUM_MAX(panel, 1) / step, 1) * step;
    int64_t rows = (int64_t)NUM_MIN(n_panel, (uint64_t)INT32_MAX) * PACK_PANEL;
    at->first_part = p->n_part;
    for (int64_t r = 0; r < w->n; r += rows, at->n_part++) {
        weight_part rest = {.block = b,
                            .w = j,
                            .first_row = r,
                            .n_row = NUM_MIN(rows, w->n - r),
                            .order = -1,
                            .table = table};
        if (!pack_bytes(&w->format, rest.n_row, w->k, &rest.bytes) || !add_part(p, cap, rest))
            return false;
        if (!table)
            p->slot_bytes = NUM_MAX(p->slot_bytes, p->parts[p->n_part - 1].bytes);
    }
    return true;
}

/* The last block's matrices. */
static bool cut_head(pager *p, size_t *cap) {
    int last = p->n_block - 1;
    const block *head = model_block(p->m, last);
    const uint64_t most = p->slot_bytes;
    for (int i = 0; i < head->n_weight; i++) {
        int b = last, j = i;
        pager_resolve(p, &b, &j);
        place *at = &p->places[p->first_weight[b] + j];
        if (!p->head_use[p->first_weight[b] + j] || at->n_part > 0)
            continue;
        at->by_row = b != last;
        if (!cut_rows(p, b, j, most, false, cap))
            return false;
    }
    return true;
}

static bool cut_tables(pager *p, size_t *cap) {
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const place *at = &p->places[p->first_weight[b] + i];
            if (!blk->weights[i].vector && blk->weights[i].shared_block < 0 && at->by_row &&
                at->n_part == 0 && !cut_rows(p, b, i, p->slot_bytes, true, cap))
                return false;
        }
    }
    return true;
}

nib_status pager_cut(pager *p, nib_error *err) {
    int last = p->n_block - 1;
    const block *head = model_block(p->m, last);
    size_t cap = 0;
    for (int i = 0; i < head->n_weight; i++) {
        int b = last, w = i;
        pager_resolve(p, &b, &w);
        if (!head->weights[i].vector && (use_of(head, i) & USE_PRODUCT))
            p->head_use[p->first_weight[b] + w] = true;
    }
    cut_vectors(p);
    bool ok = true;
    for (int b = 0; b < p->n_block && ok; b++)
        ok = cut_block(p, b, &cap);
    ok = ok && cut_head(p, &cap) && cut_tables(p, &cap);
    p->streamed = ok ? mem_calloc((size_t)p->n_part + 1, sizeof *p->streamed) : NULL;
    if (!p->streamed)
        return nib_fail_nomem(err, (size_t)p->n_part * sizeof *p->parts, "the pager's parts");
    uint64_t bytes = cap * sizeof *p->parts + ((size_t)p->n_part + 1) * sizeof *p->streamed;
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, bytes, err));
    p->tables += bytes;
    return NIB_OK;
}

/* ---- what stays ---- */

static void place_vectors(pager *p) {
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            place *at = &p->places[p->first_weight[b] + i];
            if (blk->weights[i].vector && blk->weights[i].shared_block < 0)
                at->resident = p->map + at->offset;
        }
    }
}

void pager_place_all(pager *p) {
    place_vectors(p);
    for (int i = 0; i < p->n_part; i++)
        p->parts[i].resident = p->map + p->parts[i].image;
    for (int i = 0; i < p->first_weight[p->n_block]; i++) {
        place *at = &p->places[i];
        if (at->n_part > 0)
            at->resident = p->parts[at->first_part].resident;
        at->n_part = 0;
        at->by_row = false;
    }
}

/* Spread evenly over the cycle, so that the disk works while resident parts are computed. */
uint64_t pager_choose_resident(pager *p, uint64_t budget) {
    uint64_t total = 0, seen = 0, kept = 0;
    for (int i = 0; i < p->n_part; i++)
        total += p->parts[i].table ? 0 : p->parts[i].bytes;
    double share = total ? NUM_MIN((double)budget / (double)total, 1.0) : 1.0;
    for (int i = 0; i < p->n_part; i++) {
        weight_part *at = &p->parts[i];
        at->order = -1;
        if (at->table)
            continue;
        seen += at->bytes;
        if ((double)(kept + at->bytes) <= share * (double)seen && kept + at->bytes <= budget) {
            at->order = 0;
            kept += at->bytes;
        }
    }
    for (int i = 0; i < p->n_part; i++) {
        weight_part *at = &p->parts[i];
        if (!at->table && at->order < 0 && kept + at->bytes <= budget) {
            at->order = 0;
            kept += at->bytes;
        }
    }
    return kept;
}

void pager_place_parts(pager *p) {
    int last = p->n_block - 1;
    uint64_t at = p->vector_bytes;
    place_vectors(p);
    p->first_head = -1;
    for (int i = 0; i < p->n_part; i++) {
        weight_part *which = &p->parts[i];
        if (which->table)
            continue;
        if (which->order == 0) {
            which->resident = p->map + at;
            at += which->bytes;
            which->order = -1;
            continue;
        }
        bool in_head = which->w >= 0 || which->block == last;
        if (in_head && p->first_head < 0)
            p->first_head = p->n_streamed;
        which->order = p->n_streamed;
        p->streamed[p->n_streamed++] = i;
    }
    for (int i = 0; i < p->first_weight[p->n_block]; i++) /* tables are read by row */
        if (p->places[i].n_part > 0 && p->parts[p->places[i].first_part].table)
            p->places[i].n_part = 0;
    if (p->first_head < 0)
        p->first_head = p->n_streamed;
}

uint64_t pager_row_scratch(const pager *p) {
    uint64_t most = 0;
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            uint64_t bytes = 0;
            if (blk->weights[i].vector || !p->places[p->first_weight[b] + i].by_row)
                continue;
            pack_bytes(&blk->weights[i].format, 1, blk->weights[i].k, &bytes);
            most = NUM_MAX(most, pager_round64(bytes));
        }
    }
    return most;
}

void pager_where(const pager *p, int b, int w, uint64_t *kept, uint64_t *on_disk) {
    const weight *own = &model_block(p->m, b)->weights[w];
    const place *at = &p->places[p->first_weight[b] + w];
    *kept = *on_disk = 0;
    if (own->shared_block >= 0)
        return;
    if (at->n_part == 0) {
        bool here = at->resident || (at->grouped && p->parts[p->group[b]].resident);
        *(here ? kept : on_disk) = whole_bytes(own);
        return;
    }
    for (int i = at->first_part; i < at->first_part + at->n_part; i++) {
        uint64_t bytes = 0; /* it fitted when the part was cut */
        pack_bytes(&own->format, p->parts[i].n_row, own->k, &bytes);
        *(p->parts[i].resident ? kept : on_disk) += bytes;
    }
}
