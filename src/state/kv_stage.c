/* kv_stage.c - see kv_stage.h. */
#include "state/kv_stage.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/kv_layout.h"

#include <stdlib.h>
#include <string.h>

enum { NOTHING = -1 };

/* Pairs of pages in one of the lists for KV_HOME_HOST. */
typedef struct pair_list {
    int64_t first, n;
} pair_list;

/* Sequences whose pages are in a slot together. */
typedef struct part {
    int first, end;  /* of `rows` */
    int64_t row_end; /* rows of the pass */
    int first_run, end_run;
    pair_list pages[2], newest[2]; /* in the lists down and up; with codes newest positions too */
    bool by_host;
} part;

/* A page of a part. */
typedef struct page_at {
    const kv_page *page;
    uint8_t *host;
    int32_t *number; /* of the list */
    bool whole;      /* it is full and read */
} page_at;

/* Full pages that rows of a part read, adjacent in host memory and in a slot. */
typedef struct run {
    uint8_t *host;
    uint64_t at; /* bytes from the beginning of the slot */
    int64_t n;
} run;

typedef struct slot {
    uint8_t *at;
    int layer, part; /* NOTHING: it is free */
    device_mark arrived;
} slot;

struct kv_stage {
    kv_stage_setup setup;
    device_watch watch;
    memory_region memory; /* slots, then the lists */
    slot slots[KV_STAGE_SLOTS];
    slot *held;         /* acquired; NULL: none */
    device_mark stored; /* the latest store */

    /* the pass */
    const kv_paging *paging;
    kv_stage_rows *rows;
    part *parts;
    page_at *pages; /* of a part, while it is listed */
    run *runs;
    int n_row, n_part, n_run;
    size_t max_rows, max_parts, max_list, max_pages, max_runs;
    int32_t *list;   /* the host's copy of: pairs up, pairs down [n_page, 2], numbers of pages [n_page] */
    int64_t n_page;  /* of the pass */
    uint8_t *origin; /* pages on the host are numbered from here */
    int next_layer, next; /* the part that is loaded next; layer n_layer: none */
};

uint64_t kv_stage_bytes(uint64_t slot_bytes, uint64_t n_list) {
    return KV_STAGE_SLOTS * slot_bytes + n_list * KV_STAGE_LIST * sizeof(int32_t) + DEVICE_PAGE;
}

static nib_status reserve(kv_stage *s, int64_t n_page, int64_t n_list, nib_error *err) {
    kv_stage_setup *how = &s->setup;
    how->n_page = NUM_MAX(how->n_page, n_page);
    how->n_list = NUM_MAX(how->n_list, n_list);
    const uint64_t each = kv_stage_slot(how->stride, (uint64_t)how->n_page, how->newest,
                                        (uint64_t)how->n_newest),
                   bytes = kv_stage_bytes(each, (uint64_t)how->n_list);
    memory_region_close(&s->memory);
    NIB_TRY(memory_region_open(&s->memory, how->memory, how->ledger, NIB_OWNER_STAGING, bytes, false,
                               "keys and values on their way", err));
    for (int i = 0; i < KV_STAGE_SLOTS; i++)
        s->slots[i].at = (uint8_t *)s->memory.at + (uint64_t)i * each;
    return NIB_OK;
}

nib_status kv_stage_open(const kv_stage_setup *how, kv_stage **out, nib_error *err) {
    kv_stage *s = mem_calloc(1, sizeof *s);
    if (!s)
        return nib_fail_nomem(err, sizeof *s, "the stage of keys and values");
    s->setup = *how;
    const nib_status status = reserve(s, 0, 0, err);
    if (status != NIB_OK) {
        kv_stage_close(s);
        return status;
    }
    *out = s;
    return NIB_OK;
}

void kv_stage_close(kv_stage *s) {
    if (!s)
        return;
    memory_region_close(&s->memory);
    mem_free(s->rows);
    mem_free(s->parts);
    mem_free(s->list);
    mem_free(s->pages);
    mem_free(s->runs);
    mem_free(s);
}

void kv_stage_set_watch(kv_stage *s, const device_watch *watch) {
    if (s)
        s->watch = watch ? *watch : (device_watch){0};
}

/* ---- the parts of a pass ---- */

void kv_stage_clear(kv_stage *s) {
    s->n_row = s->n_part = s->n_run = 0;
    s->n_page = 0;
    s->held = NULL;
    for (int i = 0; i < KV_STAGE_SLOTS; i++)
        s->slots[i].layer = s->slots[i].part = NOTHING;
}

static int64_t pages_of(const kv_stage_rows *r) {
    return (r->end - 1) / KV_BLOCK + 1;
}

/* Pages for the newest block of a sequence. */
static int64_t n_newest(const kv_stage *s) {
    return s->setup.newest > 0;
}

/* Where the first page of a slot is that is not for newest positions. */
static uint64_t pages_at(const kv_stage *s) {
    return (uint64_t)(s->setup.n_newest * n_newest(s)) * s->setup.newest;
}

nib_status kv_stage_add(kv_stage *s, const kv_stage_rows *rows, nib_error *err) {
    const size_t n = (size_t)s->n_row + 1;
    if (mem_grow((void **)&s->rows, &s->max_rows, n, sizeof *s->rows) ||
        mem_grow((void **)&s->parts, &s->max_parts, n, sizeof *s->parts))
        return nib_fail_nomem(err, n * (sizeof *s->rows + sizeof *s->parts), "the rows of a pass");
    s->rows[s->n_row] = *rows;
    s->rows[s->n_row++].page = s->n_page;
    s->n_page += n_newest(s) + pages_of(rows);
    return NIB_OK;
}

/* Whether one more sequence does not fit in a slot with the part; n_page: the pages of all. */
static bool is_full(const kv_stage *s, const part *p, int64_t n_page) {
    return n_page > s->setup.n_page || (s->setup.newest && p->end - p->first >= s->setup.n_newest);
}

/* Cuts the rows into parts. A part's rows are all computed by the host in layers that it computes, or none.
 */
static void cut(kv_stage *s) {
    int64_t n_page = 0, row = 0;
    for (int i = 0; s->parts && i < s->n_row; i++) {
        const kv_stage_rows *r = &s->rows[i];
        part *now = s->n_part ? &s->parts[s->n_part - 1] : NULL;
        if (!now || now->by_host != r->by_host || is_full(s, now, n_page + pages_of(r))) {
            now = &s->parts[s->n_part++];
            *now = (part){.first = i, .by_host = r->by_host};
            n_page = 0;
        }
        n_page += pages_of(r);
        row += r->end - r->first;
        now->end = i + 1;
        now->row_end = row;
    }
}

/* The pages of n positions of a sequence that rows read, or write. Pages of codes, and pages on a disk, are
 * complete: from_disk.h has the incomplete one. */
static int64_t moved_pages(const kv_stage *s, int64_t n) {
    return s->setup.device->kind->whole_pages ? n / KV_BLOCK : kv_table_pages(s->paging->formats, n);
}

static nib_status list_pair(const kv_stage *s, int32_t *pairs, int64_t *n, int32_t here, const uint8_t *there,
                            nib_error *err) {
    const intptr_t apart = (there - s->origin) / DEVICE_PAGE;
    if (apart < INT32_MIN || apart > INT32_MAX)
        return nib_fail(err, NIB_E_DEVICE, "pages of keys and values are too far apart for the device");
    pairs[2 * *n] = here;
    pairs[2 * (*n)++ + 1] = (int32_t)apart;
    return NIB_OK;
}

static int32_t *numbers(const kv_stage *s, const kv_stage_rows *r) {
    return s->list + 4 * s->n_page + r->page;
}

static int by_address(const void *a, const void *b) {
    const page_at *x = a, *y = b;
    return x->host != y->host ? (x->host > y->host) - (x->host < y->host) : y->whole - x->whole;
}

/* Adds a page to the last run, or to a new one; before: the page before it in the slot. */
static void add_to_run(kv_stage *s, const page_at *x, const page_at *before, uint64_t at) {
    if (before && before->whole && kv_page_follows(before->page, x->page))
        s->runs[s->n_run - 1].n++;
    else
        s->runs[s->n_run++] = (run){x->host, at, 1};
}

/* Collects a part's pages. Those of codes that are incomplete do not exist, and kernels do not read them. */
static size_t collect_pages(kv_stage *s, const part *p) {
    size_t n = 0;
    for (int i = p->first; i < p->end; i++) {
        const kv_stage_rows *r = &s->rows[i];
        int32_t *number = numbers(s, r);
        if (n_newest(s))
            *number++ = (int32_t)((i - p->first) * (int64_t)(s->setup.newest / DEVICE_PAGE));
        for (int64_t b = 0; b < pages_of(r); b++, number++) {
            *number = (int32_t)(pages_at(s) / DEVICE_PAGE);
            if (b < r->kv->n_page)
                s->pages[n++] =
                    (page_at){r->kv->pages[b], r->kv->on_host[b], number, (b + 1) * KV_BLOCK <= r->first};
        }
    }
    return n;
}

/* Numbers a part's pages in its slot by their addresses on the host, so that many are copied at once. A page
 * of several sequences comes once. */
static void number_pages(kv_stage *s, part *p) {
    const size_t n = collect_pages(s, p);
    uint64_t at = pages_at(s);
    p->first_run = s->n_run;
    qsort(s->pages, n, sizeof *s->pages, by_address);
    for (size_t i = 0; i < n; i++) {
        const page_at *x = &s->pages[i];
        const bool again = i > 0 && x->host == x[-1].host;
        at += i > 0 && !again ? s->setup.stride : 0;
        *x->number = (int32_t)(at / DEVICE_PAGE);
        if (x->whole && !again)
            add_to_run(s, x, i > 0 ? x - 1 : NULL, at);
    }
    p->end_run = s->n_run;
}

/* Blocks [first, end) of a sequence. */
typedef struct blocks {
    int64_t first, end;
} blocks;

/* Blocks whose pages come up, or go down. */
static blocks moved_blocks(const kv_stage *s, const kv_stage_rows *r, bool up) {
    return up ? (blocks){0, moved_pages(s, r->first)} : (blocks){r->first / KV_BLOCK, moved_pages(s, r->end)};
}

/* Whether the newest block is copied: up if it is incomplete, down always. */
static bool moves_newest(const kv_stage *s, const kv_stage_rows *r, bool up) {
    return n_newest(s) && (!up || r->first % KV_BLOCK);
}

static int32_t *pairs_of(const kv_stage *s, bool up) {
    return s->list + (up ? 0 : 2 * s->n_page);
}

/* Pairs a part's pages with those on the host for layers with KV_HOME_HOST, behind the first *n of a list. */
static nib_status list_pairs(kv_stage *s, part *p, bool up, int64_t *n, nib_error *err) {
    int32_t *const list = pairs_of(s, up);
    p->pages[up].first = *n;
    for (int i = p->first; i < p->end && !p->by_host; i++) {
        const kv_stage_rows *r = &s->rows[i];
        const blocks all = moved_blocks(s, r, up);
        for (int64_t b = all.first; b < all.end; b++)
            NIB_TRY(list_pair(s, list, n, numbers(s, r)[n_newest(s) + b], r->kv->on_host[b], err));
    }
    p->pages[up].n = *n - p->pages[up].first;
    p->newest[up].first = *n;
    for (int i = p->first; i < p->end && !p->by_host; i++) {
        const kv_stage_rows *r = &s->rows[i];
        if (moves_newest(s, r, up))
            NIB_TRY(list_pair(s, list, n, *numbers(s, r), r->kv->host_newest.at, err));
    }
    p->newest[up].n = *n - p->newest[up].first;
    return NIB_OK;
}

static int32_t *there(const kv_stage *s) {
    return (int32_t *)(void *)(s->slots[0].at + KV_STAGE_SLOTS * (s->slots[1].at - s->slots[0].at));
}

/* Whether the layer's pages come for the part. */
static bool comes(const kv_stage *s, int layer, int p) {
    const kv_home home = s->paging->layers[layer].home;
    return home == KV_HOME_STAGED || (home == KV_HOME_HOST && !s->parts[p].by_host);
}

/* Moves the next part to load on, to one that comes. */
static void advance(kv_stage *s, int layer, int p) {
    for (; layer < s->paging->n_layer; layer++, p = 0)
        for (; p < s->n_part; p++)
            if (comes(s, layer, p)) {
                s->next_layer = layer;
                s->next = p;
                return;
            }
    s->next_layer = s->paging->n_layer;
}

/* ---- copies ---- */

/* Copies the pages of pairs, of a layer that is in them as l says. */
static nib_status reorder(kv_stage *s, const slot *x, const kv_layer *l, pair_list of, bool up,
                          nib_error *err) {
    device *host = s->setup.host;
    const device_pages pages = {.key = x->at,
                                .value = l->shared ? NULL : x->at + (l->value_at - l->key_at),
                                .host_key = s->origin + l->key_at,
                                .host_value = s->origin + l->value_at,
                                .pairs = there(s) + (pairs_of(s, up) - s->list) + 2 * of.first,
                                .n_page = of.n,
                                .n_head = l->n_kv_head,
                                .d_head = l->d_head,
                                .code_bits = kv_is_coded(l->type) ? kv_code_bits(l->type) : 0,
                                .up = up};
    if (pages.n_page == 0)
        return NIB_OK;
    return host->kind->reorder(host, up ? DEVICE_LOAD_CACHE : DEVICE_STORE_CACHE, &pages, err);
}

static nib_status copy_reordered(kv_stage *s, const slot *x, bool up, nib_error *err) {
    const part *p = &s->parts[x->part];
    NIB_TRY(reorder(s, x, &s->paging->layers[x->layer], p->pages[up], up, err));
    if (!s->setup.newest)
        return NIB_OK;
    return reorder(s, x, &s->rows->kv->recent.layers[x->layer], p->newest[up], up, err);
}

/* Positions [first, end) of a block. */
typedef struct positions {
    int64_t first, end;
} positions;

/* What a pass reads of block b of a sequence, or writes there. */
static positions in_block(const kv_stage_rows *r, int64_t b, bool up) {
    const int64_t begin = b * KV_BLOCK, first = NUM_MAX(r->first - begin, 0);
    return up ? (positions){0, NUM_MIN(first, (int64_t)KV_BLOCK)}
              : (positions){first, NUM_MIN(r->end - begin, (int64_t)KV_BLOCK)};
}

/* Copies a layer's keys and values of these positions in a page, head by head; codes, and pages whose values
 * do not follow the keys at once, as a whole. */
static nib_status copy_page(const kv_stage *s, const kv_layer *l, uint8_t *here, uint8_t *page, positions p,
                            bool up, nib_error *err) {
    device *d = s->setup.device;
    const device_lane lane = up ? DEVICE_LOAD_CACHE : DEVICE_STORE_CACHE;
    const uint64_t bytes = kv_layer_bytes(s->paging, l);
    const uint64_t head = (uint64_t)kv_head_bytes(l->type, l->d_head), row = head / KV_BLOCK;
    uint8_t *host = page + l->key_at;
    if (d->kind->whole_pages || kv_is_coded(l->type) || p.end - p.first == KV_BLOCK ||
        bytes != 2 * (uint64_t)l->n_kv_head * head)
        return d->kind->copy(d, lane, up ? here : host, up ? host : here, bytes, err);
    here += (uint64_t)p.first * row;
    host += (uint64_t)p.first * row;
    return d->kind->copy_rows(d, lane, up ? here : host, head, up ? host : here, head,
                              (uint64_t)(p.end - p.first) * row, 2 * l->n_kv_head, err);
}

/* Copies the newest block of a sequence: loads what it has before the pass, stores what rows have written. */
static nib_status copy_newest(kv_stage *s, int layer, const kv_stage_rows *r, uint8_t *at, bool up,
                              nib_error *err) {
    const int64_t last = (up ? r->first : r->end - 1) / KV_BLOCK;
    return moves_newest(s, r, up) ? copy_page(s, &r->kv->recent.layers[layer], at, r->kv->host_newest.at,
                                              in_block(r, last, up), up, err)
                                  : NIB_OK;
}

/* Copies the pages of a sequence that rows write (down), or the incomplete one that they read (up). */
static nib_status copy_written(const kv_stage *s, const slot *x, const kv_stage_rows *r, bool up,
                               nib_error *err) {
    const int32_t *number = numbers(s, r) + n_newest(s);
    const int64_t first = r->first / KV_BLOCK;
    const int64_t end = !up ? moved_pages(s, r->end) : r->first % KV_BLOCK ? moved_pages(s, r->first) : first;
    for (int64_t n = first; n < end; n++)
        NIB_TRY(copy_page(s, &s->paging->layers[x->layer], x->at + (uint64_t)number[n] * DEVICE_PAGE,
                          r->kv->on_host[n], in_block(r, n, up), up, err));
    return NIB_OK;
}

static nib_status load_runs(const kv_stage *s, const slot *x, nib_error *err) {
    device *d = s->setup.device;
    const kv_layer *l = &s->paging->layers[x->layer];
    const uint64_t bytes = kv_layer_bytes(s->paging, l), pitch = s->paging->host_bytes;
    for (int i = s->parts[x->part].first_run; i < s->parts[x->part].end_run; i++) {
        const run *r = &s->runs[i];
        NIB_TRY(d->kind->copy_rows(d, DEVICE_LOAD_CACHE, x->at + r->at, s->setup.stride, r->host + l->key_at,
                                   pitch, bytes, r->n, err));
    }
    return NIB_OK;
}

static nib_status copy_sequences(kv_stage *s, const slot *x, bool up, nib_error *err) {
    uint8_t *newest = x->at;
    if (s->paging->layers[x->layer].home == KV_HOME_HOST)
        return copy_reordered(s, x, up, err);
    if (up)
        NIB_TRY(load_runs(s, x, err));
    for (int i = s->parts[x->part].first; i < s->parts[x->part].end; i++) {
        const kv_stage_rows *r = &s->rows[i];
        NIB_TRY(copy_newest(s, x->layer, r, newest, up, err));
        NIB_TRY(copy_written(s, x, r, up, err));
        newest += s->setup.newest;
    }
    return NIB_OK;
}

/* Bytes of a part in a layer that are copied. */
static uint64_t copied_bytes(const kv_stage *s, const slot *x, bool up) {
    const part *p = &s->parts[x->part];
    const kv_layer *l = &s->paging->layers[x->layer];
    int64_t n = l->home == KV_HOME_STAGED ? 0 : p->pages[up].n;
    for (int i = p->first; i < p->end && l->home == KV_HOME_STAGED; i++) {
        const blocks all = moved_blocks(s, &s->rows[i], up);
        n += all.end - all.first;
    }
    return (uint64_t)n * kv_layer_bytes(s->paging, l);
}

static nib_status copy_part(kv_stage *s, const slot *x, bool up, nib_error *err) {
    const device_lane lane = up ? DEVICE_LOAD_CACHE : DEVICE_STORE_CACHE;
    if (s->watch.begin)
        NIB_TRY(s->watch.begin(s->watch.user, up ? "load keys and values" : "store keys and values", lane,
                               true, copied_bytes(s, x, up), err));
    NIB_TRY(copy_sequences(s, x, up, err));
    return s->watch.end ? s->watch.end(s->watch.user, lane, err) : NIB_OK;
}

static nib_status load(kv_stage *s, slot *x, int layer, int p, nib_error *err) {
    device *d = s->setup.device;
    x->layer = layer;
    x->part = p;
    NIB_TRY(d->kind->follow(d, DEVICE_LOAD_CACHE, s->stored, err));
    NIB_TRY(copy_part(s, x, true, err));
    NIB_TRY(d->kind->mark(d, DEVICE_LOAD_CACHE, &x->arrived, err));
    advance(s, layer, p + 1);
    return NIB_OK;
}

/* ---- acquiring ---- */

/* The slot with the part; otherwise a free one; otherwise one that was loaded ahead for another part. */
static slot *slot_for(kv_stage *s, int layer, int p) {
    slot *found = NULL;
    for (int i = 0; i < KV_STAGE_SLOTS; i++) {
        slot *x = &s->slots[i];
        if (x->layer == layer && x->part == p)
            return x;
        if (x != s->held && (!found || x->layer == NOTHING))
            found = x;
    }
    return found;
}

/* Loads the next parts into the free slots. */
static nib_status load_ahead(kv_stage *s, nib_error *err) {
    for (int i = 0; i < KV_STAGE_SLOTS; i++)
        if (s->slots[i].layer == NOTHING && s->next_layer < s->paging->n_layer)
            NIB_TRY(load(s, &s->slots[i], s->next_layer, s->next, err));
    return NIB_OK;
}

static nib_status prepare(kv_stage *s, nib_error *err) {
    device *d = s->setup.device;
    int64_t most = 0, n_pair[2] = {0, 0};
    device_mark listed;
    for (int i = 0; i < s->n_row; i++)
        most = NUM_MAX(most, pages_of(&s->rows[i]));
    if (most > s->setup.n_page || s->n_page > s->setup.n_list)
        NIB_TRY(reserve(s, most, s->n_page, err));
    const size_t n = KV_STAGE_LIST * (size_t)s->n_page;
    if (n == 0)
        return NIB_OK;
    if (mem_grow((void **)&s->list, &s->max_list, n, sizeof *s->list) ||
        mem_grow((void **)&s->pages, &s->max_pages, (size_t)s->n_page, sizeof *s->pages) ||
        mem_grow((void **)&s->runs, &s->max_runs, (size_t)s->n_page, sizeof *s->runs))
        return nib_fail_nomem(err, n * (sizeof *s->list + sizeof *s->pages), "a list of pages");
    s->paging = kv_pool_paging(s->rows->kv->pool);
    s->origin = s->setup.newest ? s->rows->kv->host_newest.at : s->rows->kv->on_host[0];
    cut(s);
    for (int i = 0; i < s->n_part; i++) {
        number_pages(s, &s->parts[i]);
        for (int up = 0; up < 2 && kv_paging_has(s->paging, KV_HOME_HOST); up++)
            NIB_TRY(list_pairs(s, &s->parts[i], up, &n_pair[up], err));
    }
    NIB_TRY(d->kind->copy(d, DEVICE_LOAD_CACHE, there(s), s->list, n * sizeof *s->list, err));
    NIB_TRY(d->kind->mark(d, DEVICE_LOAD_CACHE, &listed, err));
    NIB_TRY(d->kind->follow(d, DEVICE_COMPUTE, listed, err));
    NIB_TRY(d->kind->follow(d, DEVICE_STORE_CACHE, listed, err));
    advance(s, 0, 0);
    return load_ahead(s, err);
}

nib_status kv_stage_begin(kv_stage *s, nib_error *err) {
    const nib_status status = prepare(s, err);
    if (status != NIB_OK) /* no end follows, and copies may be queued */
        kv_stage_end(s, NULL);
    return status;
}

/* The part with this row of the pass, by bisection: a pass may have thousands. */
static int part_with(const kv_stage *s, int64_t row) {
    int low = 0, high = s->n_part - 1;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (s->parts[middle].row_end > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

nib_status kv_stage_acquire(kv_stage *s, int layer, int64_t row, kv_stage_part *out, nib_error *err) {
    device *d = s->setup.device;
    const kv_layer *l = &s->paging->layers[layer];
    const kv_layer *newest = s->setup.newest ? &s->rows->kv->recent.layers[layer] : l;
    const int p = part_with(s, row);
    if (s->held && (s->held->layer != layer || s->held->part != p)) /* of which not all rows have come */
        NIB_TRY(kv_stage_release(s, err));
    slot *x = slot_for(s, layer, p);
    if (x->layer != layer || x->part != p)
        NIB_TRY(load(s, x, layer, p, err));
    s->held = x;
    NIB_TRY(load_ahead(s, err));
    NIB_TRY(d->kind->follow(d, DEVICE_COMPUTE, x->arrived, err));
    *out = (kv_stage_part){.key = x->at,
                           .value = x->at + (l->value_at - l->key_at),
                           .newest_value = x->at + (newest->value_at - newest->key_at),
                           .pages = there(s) + 4 * s->n_page,
                           .end = s->parts[p].row_end};
    return NIB_OK;
}

nib_status kv_stage_release(kv_stage *s, nib_error *err) {
    device *d = s->setup.device;
    slot *x = s->held;
    device_mark attended;
    NIB_TRY(d->kind->mark(d, DEVICE_COMPUTE, &attended, err));
    NIB_TRY(d->kind->follow(d, DEVICE_STORE_CACHE, attended, err));
    NIB_TRY(copy_part(s, x, false, err));
    NIB_TRY(d->kind->mark(d, DEVICE_STORE_CACHE, &s->stored, err));
    x->layer = x->part = NOTHING;
    s->held = NULL;
    return load_ahead(s, err);
}

nib_status kv_stage_end(kv_stage *s, nib_error *err) {
    device *d = s->setup.device;
    static const device_lane lanes[] = {DEVICE_LOAD_CACHE, DEVICE_STORE_CACHE};
    nib_status status = NIB_OK;
    for (size_t i = 0; i < NUM_COUNT(lanes); i++) {
        device_mark all;
        const nib_status marked = d->kind->mark(d, lanes[i], &all, status == NIB_OK ? err : NULL);
        status = status == NIB_OK ? marked : status;
        if (marked == NIB_OK) {
            const nib_status waited = d->kind->wait(d, all, status == NIB_OK ? err : NULL);
            status = status == NIB_OK ? waited : status;
        }
    }
    kv_stage_clear(s);
    return status;
}
