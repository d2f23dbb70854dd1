/* pager.c - decides what stays in memory, loads it, and hands blocks to the step loop.
 *
 * DESIGN. When everything fits (or there is no cap) every weight has a place in one mapping and pinning is a
 * look-up. Under a smaller cap, with streaming allowed, the weights are cut into *parts*: all matrices of a
 * block are one part; the output head, the one matrix that can be larger than the whole budget, is cut into
 * parts of rows no larger than the largest block. As many parts as fit beside the ring stay resident; a dense
 * model visits its parts in a fixed cycle, so no choice of which ones to keep reads fewer bytes than another,
 * and they are spread evenly so that the disk works while resident parts are computed. The others go through
 * a ring of slots filled by the reader thread in the order of the cycle. Vectors are always resident. Tables
 * that are only looked up by row are read by row.
 *
 *      part, streamed:
 *
 *                       reader takes it                  reader done
 *          on disk  ----------------------->  reading  ----------------->  ready
 *             ^        (reader_main)             |        (reader_main)      |
 *             |                                  | error, or discarded       | reader_pin
 *             |<---------------------------------+                           v
 *             |<-------------------------------------------------------- pinned
 *             |                      reader_unpin
 *             +<--- ready, but not what is asked for: reader_pin turns the reader to the part that is
 *
 * INVARIANTS
 *  1. A weight's own bytes are in exactly one of: its place in the mapping, its resident part, a slot, the
 * disk.
 *  2. Places, parts and views of resident weights never change after pager_open.
 *  3. What is charged to the ledger covers the mapping, the ring, its staging and these tables before any of
 * them is allocated; nothing is allocated by pin, unpin or read_row.
 *  4. At most one part is pinned at a time, so with two slots the reader always has one to fill.
 *  5. A slot's state changes under the reader's lock only; its bytes are written only while it is reading and
 * read only while it is pinned.
 *  6. A slot that is reading is left alone until the reader is done, also when its part is no longer wanted.
 *  7. An error belongs to the slot in which it happened and comes out of the pin that asks for that part; the
 * pin after it starts anew. */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

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

/* The weight that owns the bytes. */
static void resolve(const pager *p, int *b, int *w) {
    const weight *at = &model_block(p->m, *b)->weights[*w];
    if (at->shared_block >= 0) {
        *b = at->shared_block;
        *w = at->shared_index;
    }
}

static place *place_of(const pager *p, int b, int w) {
    resolve(p, &b, &w);
    return &p->places[p->first_weight[b] + w];
}

static uint64_t whole_bytes(const weight *w) {
    uint64_t bytes = 0;
    if (w->vector)
        return pager_round64((uint64_t)w->k * sizeof(float));
    return pack_bytes(&w->format, w->n, w->k, &bytes) ? pager_round64(bytes) : UINT64_MAX;
}

static nib_status make_tables(pager *p, nib_error *err) {
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

/* ---- everything resident ---- */

static uint64_t all_bytes(const pager *p) {
    uint64_t total = 0;
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++)
            if (blk->weights[i].shared_block < 0 &&
                !num_add_u64(total, whole_bytes(&blk->weights[i]), &total))
                return UINT64_MAX;
    }
    return total;
}

static nib_status map_resident(pager *p, uint64_t bytes, nib_error *err) {
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_WEIGHTS, bytes, err));
    p->map_bytes = bytes;
    p->map = bytes ? mem_map(bytes) : NULL;
    return p->map || !bytes ? NIB_OK : nib_fail_nomem(err, bytes, "the weights");
}

static uint64_t place_whole(pager *p, bool vectors_only) {
    uint64_t at = 0;
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            if (w->shared_block >= 0 || (vectors_only && !w->vector))
                continue;
            p->places[p->first_weight[b] + i].resident = p->map + at;
            at += whole_bytes(w);
        }
    }
    return at;
}

/* ---- in parts ---- */

static weight_part *add_part(pager *p, size_t *cap, weight_part what) {
    if (mem_grow((void **)&p->parts, cap, (size_t)p->n_part + 1, sizeof *p->parts) != 0)
        return NULL;
    p->parts[p->n_part] = what;
    return &p->parts[p->n_part++];
}

static bool cut_block(pager *p, int b, size_t *cap) {
    const block *blk = model_block(p->m, b);
    weight_part group = {b, -1, 0, 0, 0, NULL, -1};
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
        group.bytes += whole_bytes(w);
    }
    if (group.bytes == 0)
        return true;
    p->group[b] = p->n_part;
    p->slot_bytes = NUM_MAX(p->slot_bytes, group.bytes);
    return add_part(p, cap, group) != NULL;
}

/* The last block's matrices, in rows that fit a slot. */
static bool cut_head(pager *p, size_t *cap) {
    int last = p->n_block - 1;
    const block *head = model_block(p->m, last);
    for (int i = 0; i < head->n_weight; i++) {
        int b = last, j = i;
        resolve(p, &b, &j);
        const weight *w = &model_block(p->m, b)->weights[j];
        place *at = &p->places[p->first_weight[b] + j];
        if (!p->head_use[p->first_weight[b] + j] || at->n_part > 0)
            continue;
        uint64_t panel = 0;
        pack_bytes(&w->format, PACK_PANEL, w->k, &panel);
        p->slot_bytes = NUM_MAX(p->slot_bytes, pager_round64(panel));
        int64_t rows = (int64_t)(p->slot_bytes / NUM_MAX(panel, 1)) * PACK_PANEL;
        at->first_part = p->n_part;
        at->by_row = b != last;
        for (int64_t r = 0; r < w->n; r += rows, at->n_part++) {
            weight_part rest = {b, j, r, NUM_MIN(rows, w->n - r), 0, NULL, -1};
            pack_bytes(&w->format, rest.n_row, w->k, &rest.bytes);
            rest.bytes = pager_round64(rest.bytes);
            p->slot_bytes = NUM_MAX(p->slot_bytes, rest.bytes);
            if (!add_part(p, cap, rest))
                return false;
        }
    }
    return true;
}

static nib_status cut(pager *p, nib_error *err) {
    int last = p->n_block - 1;
    const block *head = model_block(p->m, last);
    size_t cap = 0;
    bool ok = true;
    for (int i = 0; i < head->n_weight; i++) {
        int b = last, w = i;
        resolve(p, &b, &w);
        if (!head->weights[i].vector && (use_of(head, i) & USE_PRODUCT))
            p->head_use[p->first_weight[b] + w] = true;
    }
    for (int b = 0; b < p->n_block && ok; b++)
        ok = cut_block(p, b, &cap);
    ok = ok && cut_head(p, &cap);
    p->streamed = ok ? mem_calloc((size_t)p->n_part + 1, sizeof *p->streamed) : NULL;
    if (!p->streamed)
        return nib_fail_nomem(err, (size_t)p->n_part * sizeof *p->parts, "the pager's parts");
    uint64_t bytes = cap * sizeof *p->parts + ((size_t)p->n_part + 1) * sizeof *p->streamed;
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, bytes, err));
    p->tables += bytes;
    return NIB_OK;
}

/* Marks the parts that stay (order = 0) within `budget` bytes, spread evenly over the cycle; returns their
 * bytes. */
static uint64_t choose_resident(pager *p, uint64_t budget) {
    uint64_t total = 0, seen = 0, kept = 0;
    for (int i = 0; i < p->n_part; i++)
        total += p->parts[i].bytes;
    double share = total ? NUM_MIN((double)budget / (double)total, 1.0) : 1.0;
    for (int i = 0; i < p->n_part; i++) {
        weight_part *at = &p->parts[i];
        seen += at->bytes;
        at->order = -1;
        if ((double)(kept + at->bytes) <= share * (double)seen && kept + at->bytes <= budget) {
            at->order = 0;
            kept += at->bytes;
        }
    }
    for (int i = 0; i < p->n_part; i++) {
        weight_part *at = &p->parts[i];
        if (at->order < 0 && kept + at->bytes <= budget) {
            at->order = 0;
            kept += at->bytes;
        }
    }
    return kept;
}

static void place_parts(pager *p, uint64_t at) {
    int last = p->n_block - 1;
    p->first_head = -1;
    for (int i = 0; i < p->n_part; i++) {
        weight_part *which = &p->parts[i];
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
    if (p->first_head < 0)
        p->first_head = p->n_streamed;
}

static uint64_t row_scratch(const pager *p) {
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

static nib_status refuse(const pager *p, const pager_options *o, uint64_t whole, uint64_t least,
                         nib_error *err) {
    char cap[32], need[32], small[32];
    uint64_t held = ledger_promised(p->ledger, NIB_TIER_RAM) + o->keep_free;
    num_format_size(ledger_cap(p->ledger, NIB_TIER_RAM), cap);
    num_format_size(held + whole, need);
    num_format_size(held + least, small);
    if (o->stream)
        return nib_fail(
            err, NIB_E_NOFIT,
            "RAM: the cap of %s is too small: %s holds the whole model, and %s is the least with which "
            "its weights can be streamed",
            cap, need, small);
    return nib_fail(err, NIB_E_NOFIT,
                    "RAM: the cap of %s is too small: a cap of %s would do (%s when weights may be streamed)",
                    cap, need, small);
}

static nib_status settle_in_parts(pager *p, const pager_options *o, uint64_t whole, uint64_t left,
                                  nib_error *err) {
    uint64_t vectors = 0;
    NIB_TRY(cut(p, err));
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++)
            if (blk->weights[i].vector && blk->weights[i].shared_block < 0)
                vectors += whole_bytes(&blk->weights[i]);
    }
    p->row_packed_bytes = row_scratch(p);
    uint64_t row = p->row_packed_bytes + load_buffer_bytes(p->m, 0);
    uint64_t ring = reader_bytes(p->m, p->slot_bytes) + row;
    uint64_t staging = pager_load_staging(p->m, pool_size(o->threads));
    uint64_t least = vectors + NUM_MAX(ring, staging);
    if (!o->stream || left < least + o->keep_free)
        return refuse(p, o, whole, least, err);
    uint64_t kept = choose_resident(p, left - o->keep_free - least);
    NIB_TRY(map_resident(p, vectors + kept, err));
    place_parts(p, place_whole(p, true));
    NIB_TRY(loader_open(p->m, true, &p->loader, err));
    NIB_TRY(pager_load_resident(p, o, err));
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, ring, err));
    p->ring_bytes = ring;
    NIB_TRY(load_buffer_init(&p->row_buffer, p->m, 0, err));
    p->row_packed = p->row_packed_bytes ? mem_map(p->row_packed_bytes) : NULL;
    if (p->row_packed_bytes && !p->row_packed)
        return nib_fail_nomem(err, p->row_packed_bytes, "a row of the embedding");
    log_line(o->log, "%d of %d parts of the weights are streamed from disk", p->n_streamed, p->n_part);
    return p->n_streamed ? reader_open(p, &p->reader, err) : NIB_OK;
}

static nib_status settle(pager *p, const pager_options *o, nib_error *err) {
    uint64_t left = ledger_free(p->ledger, NIB_TIER_RAM);
    uint64_t weights = all_bytes(p), staging = pager_load_staging(p->m, pool_size(o->threads));
    uint64_t beside = NUM_MAX(staging, o->keep_free), whole;
    if (!num_add_u64(weights, beside, &whole))
        return nib_fail(err, NIB_E_MODEL, "the weights' size overflows");
    if (left != NIB_AUTO && whole > left)
        return settle_in_parts(p, o, whole - o->keep_free, left, err);
    NIB_TRY(map_resident(p, weights, err));
    place_whole(p, false);
    NIB_TRY(loader_open(p->m, false, &p->loader, err));
    return pager_load_resident(p, o, err);
}

/* ---- views ---- */

static void make_views(pager *p) {
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            const place *at = place_of(p, b, i);
            view *v = &p->views[p->first_weight[b] + i];
            *v = (view){at->resident, w->format, w->n, w->k};
            if (at->grouped && p->parts[p->group[b]].resident)
                v->data = p->parts[p->group[b]].resident + at->offset;
        }
    }
}

nib_status pager_open(const model *m, ledger *l, const pager_options *options, pager **out, nib_error *err) {
    pager *p = mem_calloc(1, sizeof *p);
    if (!p)
        return nib_fail_nomem(err, sizeof *p, "the pager");
    p->m = m;
    p->ledger = l;
    p->n_block = model_n_block(m);
    nib_status status = make_tables(p, err);
    if (status == NIB_OK)
        status = settle(p, options, err);
    if (status != NIB_OK) {
        pager_close(p);
        return status;
    }
    make_views(p);
    *out = p;
    return NIB_OK;
}

void pager_close(pager *p) {
    if (!p)
        return;
    reader_close(p->reader);
    loader_close(p->loader);
    load_buffer_deinit(&p->row_buffer);
    if (p->row_packed)
        mem_unmap(p->row_packed, p->row_packed_bytes);
    if (p->map)
        mem_unmap(p->map, p->map_bytes);
    ledger_release(p->ledger, NIB_TIER_RAM, NIB_OWNER_WEIGHTS, p->map_bytes);
    ledger_release(p->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, p->ring_bytes);
    ledger_release(p->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, p->tables);
    mem_free(p->first_weight);
    mem_free(p->group);
    mem_free(p->places);
    mem_free(p->views);
    mem_free(p->head_use);
    mem_free(p->parts);
    mem_free(p->streamed);
    mem_free(p);
}

nib_status pager_pin(pager *p, int b, const view **views, nib_error *err) {
    int g = p->group[b];
    *views = p->views + p->first_weight[b];
    if (g < 0 || p->parts[g].resident)
        return NIB_OK;
    uint8_t *data;
    NIB_TRY(reader_pin(p->reader, g, &data, &p->wait_s, err));
    for (int i = p->first_weight[b]; i < p->first_weight[b + 1]; i++)
        if (p->places[i].grouped)
            p->views[i].data = data + p->places[i].offset;
    return NIB_OK;
}

void pager_unpin(pager *p, int b) {
    int g = p->group[b];
    if (g < 0 || p->parts[g].resident)
        return;
    for (int i = p->first_weight[b]; i < p->first_weight[b + 1]; i++)
        if (p->places[i].grouped)
            p->views[i].data = NULL;
    reader_unpin(p->reader, g);
}

int pager_n_part(const pager *p, int b, int w) {
    return NUM_MAX(place_of(p, b, w)->n_part, 1);
}

nib_status pager_pin_part(pager *p, int b, int w, int i, const view **v, int64_t *first_row, nib_error *err) {
    const place *at = place_of(p, b, w);
    assert(i < at->n_part);
    const weight_part *which = &p->parts[at->first_part + i];
    uint8_t *data = which->resident;
    if (!data)
        NIB_TRY(reader_pin(p->reader, at->first_part + i, &data, &p->wait_s, err));
    const weight *whole = &model_block(p->m, which->block)->weights[which->w];
    p->part_view = (view){data, whole->format, which->n_row, whole->k};
    *v = &p->part_view;
    *first_row = which->first_row;
    return NIB_OK;
}

void pager_unpin_part(pager *p, int b, int w, int i) {
    const place *at = place_of(p, b, w);
    if (!p->parts[at->first_part + i].resident)
        reader_unpin(p->reader, at->first_part + i);
}

bool pager_by_row(const pager *p, int b, int w) {
    return place_of(p, b, w)->by_row;
}

nib_status pager_read_row(pager *p, int b, int w, int64_t r, float *out, nib_error *err) {
    resolve(p, &b, &w);
    const weight *whole = &model_block(p->m, b)->weights[w];
    const place *at = place_of(p, b, w);
    view v = {at->resident, whole->format, whole->n, whole->k};
    if (!v.data && at->n_part > 0) {
        const weight_part *which = &p->parts[at->first_part + (int)(r / p->parts[at->first_part].n_row)];
        v.data = which->resident;
        v.n = which->n_row;
        if (v.data)
            r -= which->first_row;
    }
    if (!v.data) {
        load_target to = {p->row_packed, 1, 0};
        NIB_TRY(loader_check_unchanged(p->loader, err));
        NIB_TRY(loader_matrix(p->loader, whole, r, 1, &to, &p->row_buffer, err));
        v = (view){p->row_packed, whole->format, 1, whole->k};
        r = 0;
    }
    pack_read_row(&v, r, out);
    return NIB_OK;
}

void pager_expect(pager *p, int n_head) {
    if (p->reader)
        reader_expect(p->reader, n_head);
}

void pager_get_stats(const pager *p, pager_stats *out) {
    memset(out, 0, sizeof *out);
    out->resident_bytes = p->map_bytes;
    out->ring_bytes = p->ring_bytes;
    out->bytes_read = atomic_load(&p->bytes_read);
    out->wait_s = p->wait_s;
    out->n_streamed = p->n_streamed;
    out->n_resident = p->n_part ? p->n_part - p->n_streamed : p->n_block;
}
