/* pager_packed.c - the packed file of a model: its keys, finding it, writing it. The key is a hash of
 * everything on which the packed bytes depend: the model's contents, the rows of tensors that make up each
 * weight, each weight's format and place, and the output of this program's packer for a small matrix of every
 * kind. So a changed packer never uses an older packer's file, and no version number is needed. The key
 * samples the model's contents, so the header also has the modification times of its files. */
#include "weights/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static void add(XXH3_state_t *h, const void *data, size_t n) {
    XXH3_128bits_update(h, data, n);
}

/* ---- the keys ---- */

/* Hashes a small packed matrix of this weight's kind: 16 rows with enough chunks to cover every rule of the
 * layout. */
static bool add_packer(XXH3_state_t *h, const weight *w) {
    enum { SHORT = 1024 };
    const int64_t k = w->k <= SHORT ? w->k : SHORT + w->k % 256;
    uint64_t raw_each, bytes;
    if (!type_row_bytes(w->type, k, &raw_each) || !pack_bytes(&w->format, PACK_PANEL, k, &bytes))
        return false;
    size_t raw = (size_t)raw_each * PACK_PANEL;
    uint8_t *memory = mem_calloc(1, raw), *out = mem_alloc_aligned(64, (size_t)bytes);
    void *scratch = mem_alloc_aligned(64, pack_scratch_bytes(&w->format, k));
    bool ok = memory && out && scratch;
    const void *rows[PACK_PANEL];
    for (size_t i = 0; ok && i < raw; i++)
        memory[i] = (uint8_t)((i * 2654435761u) >> 13);
    for (size_t i = 0; ok && i < PACK_PANEL; i++)
        rows[i] = memory + i * raw_each;
    if (ok) {
        memset(out, 0, (size_t)bytes);
        pack_panel_from(&w->format, &(pack_from){.type = w->type, .over = w->over}, k, 0, PACK_PANEL, rows,
                        out, scratch);
        add(h, out, (size_t)bytes);
    }
    mem_free(memory);
    mem_free(out);
    mem_free(scratch);
    return ok;
}

static void add_weight(XXH3_state_t *h, const weight *w) {
    const int64_t numbers[] = {w->n, w->k, w->type, w->vector, w->transposed, w->n_piece};
    add(h, numbers, sizeof numbers);
    if (w->k_file)
        add(h, &w->first_col, sizeof w->first_col);
    add(h, &w->format, sizeof w->format);
    add(h, &w->add, sizeof w->add);
    add(h, &w->over, sizeof w->over);
    if (w->times)
        add(h, w->times, (size_t)w->k * sizeof *w->times);
    if (w->minus_exp)
        add(h, &w->minus_exp, sizeof w->minus_exp);
    if (w->imatrix)
        add(h, w->imatrix, (size_t)w->k * sizeof *w->imatrix);
    for (int i = 0; i < w->n_piece; i++) {
        const weight_piece *piece = &w->pieces[i];
        add(h, piece->tensor->name, strlen(piece->tensor->name) + 1);
        add(h, &piece->first_row, sizeof piece->first_row);
        add(h, &piece->n_row, sizeof piece->n_row);
    }
}

static bool seen_before(const pager *p, int b, int i) {
    const weight *w = &layout_block(p->layout.of, b)->weights[i];
    for (int c = 0; c <= b; c++)
        for (int j = 0; j < layout_block(p->layout.of, c)->n_weight && (c < b || j < i); j++) {
            const weight *other = &layout_block(p->layout.of, c)->weights[j];
            if (!other->vector && other->shared_block < 0 && weight_is_second(other) == weight_is_second(w) &&
                other->type == w->type && other->k == w->k &&
                !memcmp(&other->format, &w->format, sizeof w->format))
                return true;
        }
    return false;
}

/* Makes the key of the first slices (and vectors), or of the second slices. */
static bool make_key(const pager *p, const uint64_t content[2], bool second, uint64_t out[2]) {
    XXH3_state_t h;
    XXH3_128bits_reset(&h);
    add(&h, content, 2 * sizeof *content);
    for (int b = 0; b < p->layout.n_block; b++) {
        const block *blk = layout_block(p->layout.of, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            if (w->shared_block >= 0 || weight_is_second(w) != second)
                continue;
            add_weight(&h, w);
            if (!w->vector && !seen_before(p, b, i) && !add_packer(&h, w))
                return false;
        }
    }
    for (int i = 0; i < p->layout.n_page; i++) {
        const weight_page *at = &p->layout.pages[i];
        const int64_t numbers[] = {at->block, at->w, at->first_row, at->n_row, at->table, (int64_t)at->bytes};
        if (at->second == second)
            add(&h, numbers, sizeof numbers);
    }
    const XXH128_hash_t digest = XXH3_128bits_digest(&h);
    out[0] = digest.high64;
    out[1] = digest.low64;
    return true;
}

static bool make_keys(const pager *p, packed_what *out, nib_error *err) {
    const page_layout *l = &p->layout;
    const uint64_t n_second = (uint64_t)(l->n_page - l->n_first_page);
    uint64_t content[2];
    if (container_content_hash(model_container(layout_model(p->layout.of)), content, err) != NIB_OK)
        return false;
    if (!make_key(p, content, false, out->key) ||
        (n_second && !make_key(p, content, true, out->second_key))) {
        nib_fail_nomem(err, 0, "the packed file's key");
        return false;
    }
    out->image_bytes = l->first_bytes;
    out->n_unit = page_layout_n_unit(l) - n_second;
    out->second_bytes = l->image_bytes - l->first_bytes;
    out->second_unit = n_second;
    return true;
}

/* Computes the file's name and required content; false (logged): they cannot be determined. */
static bool identify(pager *p, const pager_options *o) {
    nib_error err = {NIB_OK, ""};
    if (!o->packed)
        return false;
    if (p->packed_path)
        return true;
    if (!loader_identity(p->loader, p->packed_is.source) || !make_keys(p, &p->packed_is, &err)) {
        log_line(o->log, "no packed file is used: %s", err.message);
        return false;
    }
    p->packed_path = packed_path(o->packed, &p->packed_is);
    return p->packed_path != NULL;
}

/* ---- finding ---- */

bool pager_packed_exists(const layout *lay, const char *folder) {
    pager p = {.layout = *layout_pages(lay)};
    packed_what what = {0};
    char *path = NULL;
    if (path_is_dir(folder))
        path = make_keys(&p, &what, NULL) ? packed_path(folder, &what) : NULL;
    const bool exists = path && packed_exists(path, &what);
    mem_free(path);
    return exists;
}

/* Charges the file to the disk tier and its checksums to RAM. */
static bool charge(pager *p, const packed *k, nib_error *err) {
    uint64_t bytes = packed_disk_bytes(k), tables = packed_heap_bytes(k);
    if (ledger_charge(p->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, bytes, err) != NIB_OK)
        return false;
    if (ledger_charge(p->ledger, PLACE_RAM, NIB_OWNER_TABLES, tables, err) != NIB_OK) {
        ledger_release(p->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, bytes);
        return false;
    }
    p->packed_bytes = bytes;
    p->packed_tables = tables;
    return true;
}

void pager_packed_find(pager *p, const pager_options *o, bool streams) {
    nib_error err = {NIB_OK, ""};
    packed *k = NULL;
    if (!o->packed || (!o->write_packed && !path_is_dir(o->packed)) || !identify(p, o))
        return;
    nib_status status = packed_open(p->packed_path, &p->packed_is, streams, &k, &err);
    if (status == NIB_OK && !charge(p, k, &err)) {
        packed_close(k);
        status = err.status;
    }
    if (status == NIB_OK)
        p->packed = k;
    else if (status != NIB_E_NOTFOUND)
        log_line(o->log, "the packed file is not used: %s", err.message);
}

void pager_packed_shut(pager *p) {
    packed_close(p->packed);
    p->packed = NULL;
    ledger_release(p->ledger, PLACE_RAM, NIB_OWNER_TABLES, p->packed_tables);
    p->packed_tables = 0;
}

void pager_packed_drop(pager *p, bool remove) {
    if (!p->packed)
        return;
    if (remove)
        (void)unlink(packed_name(p->packed));
    pager_packed_shut(p);
    ledger_release(p->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, p->packed_bytes);
    p->packed_bytes = 0;
}

void pager_packed_close(pager *p) {
    pager_packed_shut(p);
    ledger_release(p->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, p->packed_bytes);
    p->packed_bytes = 0;
    mem_free(p->packed_path);
    p->packed_path = NULL;
}

/* ---- writing ---- */

static bool tell(const pager_options *o, uint64_t done, uint64_t total) {
    return !o->progress || o->progress(o->user, "keep", done, total);
}

/* The source of the packed bytes: the resident map, or a buffer into which some pages at a time are loaded.
 */
typedef struct packed_from {
    load_crew *crew; /* NULL: everything is resident */
    uint8_t *buffer;
    uint64_t bytes; /* of the buffer */
    const canceller *cancel;
} packed_from;

static nib_status put_vectors(pager *p, const packed_from *from, packed_writer *w, nib_error *err) {
    const uint64_t all = p->layout.vector_bytes;
    const uint8_t *data = p->map;
    bool damaged;
    if (from->crew) {
        /* vectors only, no pages */
        const load_request request = {.vectors = from->buffer,
                                      .pages = from->buffer,
                                      .first = p->layout.n_page,
                                      .cancel = from->cancel};
        data = from->buffer;
        memset(from->buffer, 0, (size_t)all); /* padding that packing does not write is zero in every file */
        NIB_TRY(load_crew_run(from->crew, p, &request, &damaged, err));
    }
    for (uint64_t at = 0; at < all; at += PAGE_UNIT)
        NIB_TRY(packed_writer_put(w, data + at, NUM_MIN(all - at, (uint64_t)PAGE_UNIT), err));
    return NIB_OK;
}

/* Loads and writes pages from `first` on, as many as fit the buffer; *n: their number. */
static nib_status put_pages(pager *p, const packed_from *from, packed_writer *w, int first, int *n,
                            nib_error *err) {
    const page_layout *l = &p->layout;
    uint64_t bytes = l->pages[first].bytes;
    bool damaged;
    *n = 1;
    while (from->crew && first + *n < l->n_page && bytes + l->pages[first + *n].bytes <= from->bytes)
        bytes += l->pages[first + (*n)++].bytes;
    if (from->crew) {
        const load_request request = {.pages = from->buffer, .first = first, .n = *n, .cancel = from->cancel};
        memset(from->buffer, 0, (size_t)bytes);
        NIB_TRY(load_crew_run(from->crew, p, &request, &damaged, err));
    }
    const uint8_t *data = from->crew ? from->buffer : p->state[first].resident;
    for (int i = first; i < first + *n; data += l->pages[i++].bytes)
        NIB_TRY(packed_writer_put(w, data, l->pages[i].bytes, err));
    return cancel_check(from->cancel, err);
}

static nib_status write_all(pager *p, const pager_options *o, const packed_from *from, nib_error *err) {
    packed_writer *w;
    NIB_TRY(packed_writer_open(p->packed_path, &p->packed_is, &w, err));
    nib_status status = put_vectors(p, from, w, err);
    for (int i = 0, n; i < p->layout.n_page && status == NIB_OK; i += n) {
        status = put_pages(p, from, w, i, &n, err);
        const weight_page *last = &p->layout.pages[i + n - 1];
        if (status == NIB_OK && !tell(o, last->image + last->bytes, p->layout.image_bytes))
            status = nib_fail(err, NIB_E_CANCELLED, "cancelled");
    }
    if (status == NIB_OK)
        status = loader_check_unchanged(p->loader, err);
    if (status == NIB_OK)
        return packed_writer_commit(w, err);
    packed_writer_abort(w);
    return status;
}

/* Whether writing is allowed and fits. */
static bool may_write(pager *p, const pager_options *o) {
    if (!o->write_packed || !identify(p, o))
        return false;
    nib_error err;
    const nib_status status = packed_evict(o->packed, ledger_cap(p->ledger, PLACE_DISK),
                                           packed_file_bytes(&p->packed_is), p->packed_path, o->log, &err);
    if (status != NIB_OK)
        log_line(o->log, "the packed weights were not stored: %s", err.message);
    return status == NIB_OK;
}

static nib_status log_written(pager *p, const pager_options *o, nib_status status, const nib_error *why,
                              nib_error *err) {
    char size[32];
    if (status == NIB_E_CANCELLED)
        return nib_fail(err, NIB_E_CANCELLED, "%s", why->message);
    if (status == NIB_OK)
        log_line(o->log, "the packed weights are stored: %s, %s", p->packed_path,
                 num_format_size(packed_file_bytes(&p->packed_is), size));
    else
        log_line(o->log, "the packed weights were not stored: %s", why->message);
    return NIB_OK;
}

nib_status pager_packed_write_map(pager *p, const pager_options *o, nib_error *err) {
    nib_error why = {NIB_OK, ""};
    const packed_from resident = {.cancel = o->cancel};
    if (!may_write(p, o))
        return NIB_OK;
    nib_status status = write_all(p, o, &resident, &why);
    uint64_t bytes = packed_file_bytes(&p->packed_is);
    if (status == NIB_OK && ledger_charge(p->ledger, PLACE_DISK, NIB_OWNER_WEIGHTS, bytes, NULL) == NIB_OK)
        p->packed_bytes = bytes;
    return log_written(p, o, status, &why, err);
}

/* Bytes of the buffer: several pages, so that all threads have work, limited by free memory, but at least the
 * largest page. */
static uint64_t buffer_bytes(const pager *p, load_shape shape, int n_thread) {
    enum { PAGES = 16 };
    uint64_t min = p->layout.vector_bytes, max = 0;
    for (int i = 0; i < p->layout.n_page; i++)
        max = NUM_MAX(max, p->layout.pages[i].bytes);
    min = NUM_MAX(min, max);
    const uint64_t crew = load_crew_bytes(p->layout.of, n_thread, shape),
                   left = ledger_free(p->ledger, PLACE_RAM);
    return NUM_MAX(min, NUM_MIN(PAGES * max, left > crew ? left - crew : 0));
}

nib_status pager_packed_write_pages(pager *p, const pager_options *o, load_shape shape, nib_error *err) {
    nib_error why = {NIB_OK, ""};
    load_crew crew = {0};
    if (!may_write(p, o))
        return NIB_OK;
    const uint64_t bytes = buffer_bytes(p, shape, pool_size(o->threads));
    nib_status status = ledger_charge(p->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes, &why);
    bool charged = status == NIB_OK;
    packed_from from = {&crew, charged ? mem_map(bytes) : NULL, bytes, o->cancel};
    if (charged && !from.buffer)
        status = nib_fail_nomem(&why, bytes, "the packed weights");
    if (status == NIB_OK)
        status = load_crew_open(&crew, p, o->threads, shape, &why);
    if (status == NIB_OK)
        status = write_all(p, o, &from, &why);
    load_crew_close(&crew);
    if (from.buffer)
        mem_unmap(from.buffer, bytes);
    if (charged)
        ledger_release(p->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes);
    NIB_TRY(log_written(p, o, status, &why, err));
    if (status == NIB_OK)
        pager_packed_find(p, o, true);
    return NIB_OK;
}
