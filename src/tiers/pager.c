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

static nib_status map_resident(pager *p, uint64_t bytes, nib_error *err) {
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_WEIGHTS, bytes, err));
    p->map_bytes = bytes;
    p->map = bytes ? mem_map(bytes) : NULL;
    return p->map || !bytes ? NIB_OK : nib_fail_nomem(err, bytes, "the weights");
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

static nib_status open_row_buffer(pager *p, nib_error *err) {
    NIB_TRY(load_buffer_init(&p->row_buffer, p->m, 0, 1, err));
    p->row_packed = p->row_packed_bytes ? mem_map(p->row_packed_bytes) : NULL;
    return p->row_packed || !p->row_packed_bytes
               ? NIB_OK
               : nib_fail_nomem(err, p->row_packed_bytes, "a row of the embedding");
}

/* Staging for loading needs no room of its own: the ring comes after it. */
static nib_status settle_in_parts(pager *p, const pager_options *o, uint64_t whole, uint64_t left,
                                  nib_error *err) {
    int n_thread = pool_size(o->threads);
    p->row_packed_bytes = pager_row_scratch(p);
    uint64_t row = p->row_packed_bytes + load_buffer_bytes(p->m, 0, 1);
    uint64_t ring = reader_bytes(p->m, p->slot_bytes) + row;
    load_shape shape = pager_load_shape(n_thread, true, ring);
    uint64_t staging = load_crew_bytes(p->m, n_thread, shape);
    uint64_t least = p->vector_bytes + NUM_MAX(ring, staging);
    if (!o->stream || left < least + o->keep_free)
        return refuse(p, o, whole, least, err);
    NIB_TRY(loader_open(p->m, true, &p->loader, err));
    pager_packed_find(p, o);
    if (!p->packed)
        pager_packed_write_parts(p, o, shape);
    if (left - least - o->keep_free < p->packed_tables)
        pager_packed_drop(p, false);
    uint64_t kept = pager_choose_resident(p, left - least - o->keep_free - p->packed_tables);
    NIB_TRY(map_resident(p, p->vector_bytes + kept, err));
    pager_place_parts(p);
    NIB_TRY(pager_load_resident(p, o, shape, err));
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, ring, err));
    p->ring_bytes = ring;
    NIB_TRY(open_row_buffer(p, err));
    log_line(o->log, "%d of %d parts of the weights are streamed from disk", p->n_streamed, p->n_part);
    return p->n_streamed ? reader_open(p, &p->reader, err) : NIB_OK;
}

static nib_status settle(pager *p, const pager_options *o, nib_error *err) {
    int n_thread = pool_size(o->threads);
    NIB_TRY(pager_cut(p, err));
    uint64_t left = ledger_free(p->ledger, NIB_TIER_RAM);
    bool direct = !loader_is_cached(p->m);
    load_shape shape = pager_load_shape(n_thread, true, NIB_AUTO);
    uint64_t staging = load_crew_bytes(p->m, n_thread, shape), whole;
    if (!num_add_u64(p->image_bytes, NUM_MAX(staging, o->keep_free), &whole))
        return nib_fail(err, NIB_E_MODEL, "the weights' size overflows");
    if (left != NIB_AUTO && whole > left)
        return settle_in_parts(p, o, whole - o->keep_free, left, err);
    NIB_TRY(map_resident(p, p->image_bytes, err));
    pager_place_all(p);
    NIB_TRY(loader_open(p->m, direct, &p->loader, err));
    pager_packed_find(p, o);
    if (!p->packed)
        shape = pager_load_shape(n_thread, direct, NIB_AUTO);
    NIB_TRY(pager_load_resident(p, o, shape, err));
    if (!p->packed)
        pager_packed_write_map(p, o);
    pager_packed_shut(p);
    return NIB_OK;
}

/* ---- views ---- */

static void make_views(pager *p) {
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            const place *at = pager_place(p, b, i);
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
    p->log = options->log;
    p->n_block = model_n_block(m);
    nib_status status = pager_make_tables(p, err);
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
    pager_packed_close(p);
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

/* The reader found it out; the log is the caller's, on the caller's thread. */
static void tell_lost(pager *p) {
    if (atomic_exchange(&p->packed_lost, false))
        log_line(p->log, "the packed file cannot be read or is damaged: the model's files are read instead");
}

nib_status pager_pin(pager *p, int b, const view **views, nib_error *err) {
    tell_lost(p);
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
    return NUM_MAX(pager_place(p, b, w)->n_part, 1);
}

nib_status pager_pin_part(pager *p, int b, int w, int i, const view **v, int64_t *first_row, nib_error *err) {
    const place *at = pager_place(p, b, w);
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
    const place *at = pager_place(p, b, w);
    if (!p->parts[at->first_part + i].resident)
        reader_unpin(p->reader, at->first_part + i);
}

nib_status pager_read_row(pager *p, int b, int w, int64_t r, float *out, nib_error *err) {
    pager_resolve(p, &b, &w);
    const weight *whole = &model_block(p->m, b)->weights[w];
    const place *at = pager_place(p, b, w);
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
