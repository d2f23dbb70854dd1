/* device_store.c - see device_store.h: what is where, and the acquiring of blocks. */
#include "weights/device_store_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "model/page_layout.h"

#include <string.h>

enum { ALIGN = 256 /* bytes: alignment of a weight on a device */, NOBODY = 0, SEVERAL = -1 };

/* ---- the list of weights ---- */

store_weight *store_own(const device_store *s, int b, int w) {
    page_layout_own(s->layout, &b, &w);
    return &s->weights[layout_pages(s->layout)->first_weight[b] + w];
}

const weight *store_weight_of(const device_store *s, int b, int w) {
    page_layout_own(s->layout, &b, &w);
    return &layout_block(s->layout, b)->weights[w];
}

uint64_t store_bytes(const device_store *s, const weight *w, int64_t n_row) {
    uint64_t bytes = 0;
    if (w->vector)
        return (uint64_t)w->k * sizeof(float);
    if (w->n_expert > 1 && !s->kind->tight_experts)
        return page_layout_bytes(w, n_row);
    return n_row > 0 && pack_bytes(&w->format, n_row, w->k, &bytes) ? bytes : 0;
}

static uint64_t padded_bytes(const device_store *s, const weight *w) {
    return (store_bytes(s, w, w->n) + ALIGN - 1) / ALIGN * ALIGN;
}

static bool is_table(const op *o) {
    return o->kind == OP_EMBED || o->kind == OP_EMBED_POS;
}

void store_each_read(const device_store *s, int b, store_weight_fn fn, void *user) {
    const program *p = &layout_block(s->layout, b)->program;
    for (int i = 0; i < p->n_op; i++) {
        const op *o = &p->ops[i];
        const int read[] = {o->w, o->b, o->w2};
        for (size_t j = 0; j < NUM_COUNT(read) && !is_table(o) && o->kind != OP_SHORTLIST; j++)
            if (read[j] >= 0)
                fn(s, b, read[j], user);
    }
}

/* Whether the device has a kernel for all tables of a block. */
static bool has_kernels(const device_store *s, int b) {
    const block *of = layout_block(s->layout, b);
    for (int i = 0; i < of->program.n_op; i++)
        if (is_table(&of->program.ops[i]) && !s->kind->looks_up(&of->weights[of->program.ops[i].w].format))
            return false;
    return true;
}

void store_each_table(const device_store *s, store_weight_fn fn, void *user) {
    bool all = s->kind->looks_up != NULL;
    for (int b = 0; b < layout_n_block(s->layout) && all; b++)
        all = has_kernels(s, b);
    for (int b = 0; b < layout_n_block(s->layout) && all; b++) {
        const program *p = &layout_block(s->layout, b)->program;
        for (int i = 0; i < p->n_op; i++) {
            int owner = b, w = p->ops[i].w;
            if (!is_table(&p->ops[i]))
                continue;
            if (b > 0) /* a layer looks up a table of block 0 */
                page_layout_own(s->layout, &owner, &w);
            if (owner == 0)
                fn(s, 0, w, user);
        }
    }
}

static void note_reader(const device_store *s, int b, int w, void *user) {
    store_weight *g = store_own(s, b, w);
    (void)user;
    g->reader = g->reader == NOBODY || g->reader == b + 1 ? b + 1 : SEVERAL;
}

/* Notes a table that no product reads. */
static void note_table(const device_store *s, int b, int w, void *user) {
    store_weight *g = store_own(s, b, w);
    (void)user;
    if (g->reader == NOBODY)
        g->reader = b + 1;
}

/* Places the weight behind others; false: it has a place. */
static bool place_at(const device_store *s, int b, int w, bool exclusive, uint64_t *end) {
    store_weight *g = store_own(s, b, w);
    if (g->placed)
        return false;
    g->placed = true;
    g->of = store_weight_of(s, b, w);
    g->exclusive = exclusive;
    g->at = *end;
    *end += padded_bytes(s, store_weight_of(s, b, w));
    return true;
}

/* What products of block 0 read is always resident, since only its tables may be left out. */
static void place(const device_store *s, int b, int w, void *user) {
    device_store *to = user; /* the same */
    const bool exclusive =
        b > 0 && !store_weight_of(s, b, w)->vector && store_own(s, b, w)->reader != SEVERAL;
    if (!place_at(s, b, w, exclusive, exclusive ? &s->blocks[b].bytes : &to->fixed_bytes) || !exclusive)
        return;
    to->sizes[to->n_matrix] = padded_bytes(s, store_weight_of(s, b, w));
    to->matrices[to->n_matrix++] = store_own(s, b, w);
}

static void place_table(const device_store *s, int b, int w, void *user) {
    (void)user;
    place_at(s, b, w, true, &s->blocks[b].bytes);
}

static void list_all(device_store *s) {
    const int n_block = layout_n_block(s->layout);
    for (int b = 0; b < n_block; b++)
        store_each_read(s, b, note_reader, NULL);
    for (int b = 0; b < n_block; b++) {
        s->blocks[b].first = s->n_matrix;
        store_each_read(s, b, place, s);
    }
    s->blocks[n_block].first = s->n_matrix;
    store_each_table(s, note_table, NULL);
    store_each_table(s, place_table, NULL);
}

nib_status device_store_open(const layout *l, const device_kind *kind, device_store **out, nib_error *err) {
    const int n_block = layout_n_block(l);
    const size_t n = (size_t)n_block, n_weight = (size_t)layout_pages(l)->first_weight[n_block] + 1;
    const size_t n_page = (size_t)layout_pages(l)->n_page + 1;
    device_store *s = mem_calloc(1, sizeof *s);
    if (!s)
        return nib_fail_nomem(err, sizeof *s, "the list of weights on the device");
    *s = (device_store){.layout = l, .kind = kind, .n_change = 1};
    s->weights = mem_calloc(n_weight, sizeof *s->weights);
    s->views = mem_calloc(n_weight, sizeof *s->views);
    s->matrices = mem_calloc(n_weight, sizeof *s->matrices);
    s->sizes = mem_calloc(n_weight, sizeof *s->sizes);
    s->blocks = mem_calloc(n + 1, sizeof *s->blocks);
    s->copied = mem_calloc(n_page, sizeof *s->copied);
    s->moved.blocks = mem_calloc(n, sizeof *s->moved.blocks);
    s->locked = mem_calloc(n_page, sizeof *s->locked);
    if (!s->weights || !s->views || !s->matrices || !s->sizes || !s->blocks || !s->copied ||
        !s->moved.blocks || !s->locked) {
        device_store_close(s);
        return nib_fail_nomem(err, n_weight * sizeof *s->views, "the list of weights on the device");
    }
    list_all(s);
    *out = s;
    return NIB_OK;
}

void device_store_close(device_store *s) {
    if (!s)
        return;
    store_close_slots(s);
    store_staging_close(s);
    for (int b = 0; s->blocks && b < layout_n_block(s->layout); b++)
        memory_region_close(&s->blocks[b].memory);
    memory_region_close(&s->fixed);
    mem_free(s->weights);
    mem_free(s->views);
    mem_free(s->matrices);
    mem_free(s->sizes);
    mem_free(s->blocks);
    mem_free(s->copied);
    mem_free(s->moved.blocks);
    mem_free(s->locked);
    mem_free(s);
}

uint64_t device_store_fixed(const device_store *s) {
    return s->fixed_bytes;
}

uint64_t device_store_block(const device_store *s, int b) {
    return s->blocks[b].bytes;
}

const uint64_t *device_store_matrices(const device_store *s, int *n) {
    *n = s->n_matrix;
    return s->sizes;
}

int device_store_first_matrix(const device_store *s, int b) {
    return s->blocks[b].first;
}

uint64_t device_store_slot(const device_store *s, const bool *comes) {
    uint64_t max = 0;
    for (int b = 1; b < layout_n_block(s->layout); b++) {
        uint64_t sum = 0;
        for (int i = s->blocks[b].first; i < s->blocks[b + 1].first; i++)
            sum += !comes || comes[i] ? s->sizes[i] : 0;
        max = NUM_MAX(max, sum);
    }
    return max;
}

static bool is_layer(const layout *l, int b) {
    return b > 0 && b < layout_n_block(l) - 1;
}

uint64_t store_layer_slot(const device_store *s) {
    uint64_t max = 0;
    for (int b = 1; b < layout_n_block(s->layout) - 1; b++)
        max = NUM_MAX(max, s->blocks[b].bytes);
    return max;
}

uint64_t device_store_layer_bytes(const layout *l) {
    uint64_t max = ALIGN;
    for (int b = 0; b < layout_n_block(l); b++) {
        const block *of = layout_block(l, b);
        uint64_t sum = 0;
        for (int w = 0; w < of->n_weight && is_layer(l, b); w++)
            sum += of->weights[w].vector ? 0 : page_layout_bytes(&of->weights[w], of->weights[w].n) + ALIGN;
        max = NUM_MAX(max, sum);
    }
    return max;
}

nib_status device_store_open_layer(const layout *l, ledger *to, int owner, device_store **out,
                                   nib_error *err) {
    device_store *s;
    const device_store_setup how = {.device = device_host(), .ledger = to, .owner = owner, .n_slot = 1};
    NIB_TRY(device_store_open(l, device_host()->kind, &s, err));
    s->layers_only = true;
    const nib_status status = device_store_reserve(s, &how, err);
    if (status != NIB_OK) {
        device_store_close(s);
        return status;
    }
    *out = s;
    return NIB_OK;
}

/* ---- memory ---- */

nib_status store_take(device_store *s, int b, nib_error *err) {
    const uint64_t bytes = s->blocks[b].bytes - s->blocks[b].coming + s->blocks[b].kept;
    if (bytes == 0)
        return NIB_OK;
    return memory_region_open(&s->blocks[b].memory, s->setup.device, s->setup.ledger, NIB_OWNER_WEIGHTS,
                              bytes, false, "weights on the device", err);
}

/* Marks the pages that the device keeps: what only one block's products read, and all of it resident. */
static void mark_copied(device_store *s, int b) {
    const page_layout *pages = layout_pages(s->layout);
    const block *of = layout_block(s->layout, b);
    for (int i = 0; i < pages->n_page; i++)
        if (pages->pages[i].block == b)
            s->copied[i] = true;
    for (int w = 0; w < of->n_weight; w++) {
        const weight_place *at = page_layout_place(pages, b, w);
        for (int i = 0; of->weights[w].shared_block < 0 && i < at->n_page; i++)
            s->copied[at->first_page + i] =
                s->copied[at->first_page + i] &&
                (device_store_keeps(s, b, w) || (of->weights[w].n_expert > 1 && store_place(s, b, i) >= 0));
    }
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool is_stack(const store_weight *g) {
    return g->of->n_expert > 1;
}

static uint64_t expert_bytes(const device_store *s, const store_weight *g) {
    return store_bytes(s, g->of, g->of->n / g->of->n_expert);
}

/* Places the resident experts of block b's stacks from `at` of its region on. */
static void keep_experts(device_store *s, int b, uint64_t at) {
    store_block *x = &s->blocks[b];
    const uint64_t first = at;
    x->kept = 0;
    if (!store_is_apart(s, b) || s->setup.n_kept == 0)
        return;
    for (int i = x->first; i < (x + 1)->first; i++) {
        store_weight *g = s->matrices[i];
        g->kept_at = at;
        at += is_stack(g) && g->comes ? aligned((uint64_t)s->setup.n_kept * expert_bytes(s, g)) : 0;
    }
    x->places_at = at;
    x->kept = at + aligned((uint64_t)s->setup.n_place * sizeof(int16_t)) - first;
}

uint64_t device_store_expert(const device_store *s, int b, int *n, uint64_t *more) {
    const store_block *x = &s->blocks[b];
    uint64_t sum = 0;
    *n = 0;
    *more = ALIGN;
    for (int i = x->first; i < (x + 1)->first; i++) {
        const store_weight *g = s->matrices[i];
        if (!is_stack(g))
            continue;
        sum += expert_bytes(s, g);
        *n = (int)g->of->n_expert;
        *more += ALIGN;
    }
    *more += (uint64_t)*n * sizeof(int16_t);
    return sum;
}

bool device_store_is_stack(const device_store *s, int i) {
    return is_stack(s->matrices[i]);
}

const void *device_store_experts(const device_store *s, int b, int w) {
    const store_block *x = &s->blocks[b];
    const store_weight *g = store_own(s, b, w);
    return x->kept > 0 && g->comes ? (const uint8_t *)x->memory.at + g->kept_at : NULL;
}

const int16_t *device_store_places(const device_store *s, int b) {
    const store_block *x = &s->blocks[b];
    return x->kept > 0 ? (const int16_t *)(const void *)((const uint8_t *)x->memory.at + x->places_at) : NULL;
}

const int16_t *device_store_places_host(const device_store *s, int b) {
    return s->blocks[b].kept > 0 ? s->setup.places + (int64_t)b * s->setup.n_place : NULL;
}

void store_divide(device_store *s, int b, bool all) {
    store_block *x = &s->blocks[b];
    uint64_t here = 0;
    s->n_coming -= x->coming > 0;
    x->coming = 0;
    x->loaded = false;
    for (int i = x->first; i < (x + 1)->first; i++) {
        store_weight *g = s->matrices[i];
        g->comes = all || g->planned;
        g->loaded = false;
        uint64_t *end = g->comes ? &x->coming : &here;
        g->at = *end;
        *end += s->sizes[i];
    }
    s->n_coming += x->coming > 0;
    keep_experts(s, b, here);
    mark_copied(s, b);
}

static bool needs_slot(const void *user, const visit *v, block_when when) {
    const device_store *s = user;
    const int b = v->block;
    const bool generated = when == BLOCK_NEXT_PASS ? !s->prompts_next : v->generated;
    return s->blocks[b].coming > 0 && (!s->layers_only || is_layer(s->layout, b)) &&
           !(generated && ((s->on_host && s->on_host[b]) || store_is_apart(s, b)));
}

nib_status store_open_slots(device_store *s, nib_error *err) {
    const block_source from = {.user = s,
                               .lane = s->kind->arrange ? DEVICE_ARRANGE_WEIGHTS : DEVICE_LOAD_WEIGHTS,
                               .n_block = s->setup.next_pass ? layout_n_block(s->layout) : 0,
                               .n_slot = s->setup.n_slot,
                               .needs_slot = needs_slot,
                               .load = store_load_slot};
    if (s->n_coming == 0)
        return NIB_OK;
    return device_blocks_open(&s->slots, &from, NUM_MAX(s->slot_bytes, (uint64_t)ALIGN), s->setup.device,
                              s->setup.ledger, s->setup.owner, err);
}

static void empty_lanes(const device_store *s) {
    device *d = s->setup.device;
    for (device_lane lane = DEVICE_LOAD_WEIGHTS; d && lane <= DEVICE_ARRANGE_WEIGHTS; lane++) {
        device_mark mark;
        if (s->slots.memory.at && d->kind->mark(d, lane, &mark, NULL) == NIB_OK)
            d->kind->wait(d, mark, NULL);
    }
}

void store_empty_slots(device_store *s) {
    empty_lanes(s);
    device_blocks_forget(&s->slots);
}

void store_close_slots(device_store *s) {
    empty_lanes(s);
    store_unlock(s, -1);
    s->lock_tried = s->lock_failed = false;
    device_blocks_close(&s->slots);
}

nib_status device_store_reserve(device_store *s, const device_store_setup *how, nib_error *err) {
    const int n_block = layout_n_block(s->layout);
    s->setup = *how;
    s->setup.comes = NULL;
    for (int i = 0; i < s->n_matrix; i++)
        s->matrices[i]->planned = !how->comes || how->comes[i];
    for (int b = 1; b < n_block; b++)
        store_divide(s, b, false);
    s->slot_bytes = s->planned_slot = s->layers_only ? store_layer_slot(s) : device_store_slot(s, how->comes);
    for (int b = how->tables ? 0 : 1; b < n_block; b++)
        NIB_TRY(store_take(s, b, err));
    NIB_TRY(store_open_slots(s, err));
    if (s->layers_only)
        return NIB_OK;
    return memory_region_open(&s->fixed, how->device, how->ledger, NIB_OWNER_WEIGHTS,
                              NUM_MAX(s->fixed_bytes, (uint64_t)ALIGN), false, "vectors on the device", err);
}

uint8_t *store_at(const device_store *s, const store_weight *g) {
    uint8_t *first = g->exclusive ? s->blocks[g->reader - 1].memory.at : s->fixed.at;
    return first ? first + g->at : NULL;
}

/* ---- views ---- */

/* Where a block's kernels find weight w; NULL: it is not there. */
static const uint8_t *find(const device_store *s, int b, int w) {
    const store_weight *g = store_own(s, b, w);
    const device_block *slot = NULL;
    if (!g->placed)
        return NULL;
    if (!g->exclusive && s->layers_only)
        return pager_views(s->pager, b)[w].data;
    if (!g->exclusive || !g->comes)
        return g->loaded ? store_at(s, g) : NULL;
    if (g->reader == b + 1)
        slot = device_blocks_slot(&s->slots, b);
    return slot ? slot->at + g->at : NULL;
}

static void make_views(device_store *s, int b) {
    const block *of = layout_block(s->layout, b);
    view *v = s->views + layout_pages(s->layout)->first_weight[b];
    for (int w = 0; w < of->n_weight; w++) {
        const weight *from = store_weight_of(s, b, w);
        memset(&v[w], 0, sizeof v[w]); /* its padding too: launches are compared byte by byte */
        v[w].data = find(s, b, w);
        memcpy(&v[w].format, &from->format, sizeof from->format);
        v[w].n = from->n;
        v[w].k = from->k;
    }
    s->blocks[b].seen = s->n_change;
}

const view *device_store_views(const device_store *s, int b) {
    return s->views + layout_pages(s->layout)->first_weight[b];
}

/* ---- visits ---- */

void device_store_leave(device_store *s, const bool *on_host, bool prompts_next) {
    s->on_host = on_host;
    s->prompts_next = prompts_next;
}

bool device_store_has(const device_store *s, const visit *v) {
    return (!s->layers_only || is_layer(s->layout, v->block)) &&
           !(v->generated && s->on_host && s->on_host[v->block]);
}

/* Whether the visit needs what comes of its block. */
static bool takes_slot(const device_store *s, const visit *at) {
    return s->blocks[at->block].coming > 0 && !(at->generated && store_is_apart(s, at->block));
}

nib_status device_store_acquire(device_store *s, pager *p, const visit *at, const visits *rest,
                                const view **views, device_mark *mark, nib_error *err) {
    const int b = at->block;
    s->pager = p;
    *mark = (device_mark){.at = 0};
    if (!s->blocks[b].loaded)
        NIB_TRY(store_load(s, at, rest, err));
    if (takes_slot(s, at)) {
        const device_block *slot;
        NIB_TRY(device_blocks_acquire(&s->slots, at, rest, &slot, err));
        *mark = slot->loaded;
    }
    if (s->blocks[b].coming > 0 || s->blocks[b].seen != s->n_change)
        make_views(s, b);
    *views = device_store_views(s, b);
    return NIB_OK;
}

nib_status device_store_release(device_store *s, const visit *at, const visits *rest, nib_error *err) {
    return takes_slot(s, at) ? device_blocks_release(&s->slots, at, rest, err) : NIB_OK;
}

void device_store_end(device_store *s) {
    device_blocks_end(&s->slots);
    store_staging_close(s);
}

/* ---- what is where ---- */

bool device_store_comes(const device_store *s, int b) {
    return s->blocks[b].coming > 0;
}

bool device_store_keeps(const device_store *s, int b, int w) {
    const store_weight *g = store_own(s, b, w);
    return b > 0 && g->placed && g->exclusive && !g->comes;
}

int device_store_n_coming(const device_store *s) {
    return s->n_coming;
}

bool device_store_is_loaded(const device_store *s, int b) {
    return s->blocks[b].loaded;
}

typedef struct seen {
    int n, n_there;
} seen;

static void see(const device_store *s, int b, int w, void *user) {
    seen *x = user;
    const store_weight *g = store_own(s, b, w);
    x->n++;
    x->n_there += g->loaded && store_at(s, g) && !g->comes;
}

bool device_store_has_tables(const device_store *s) {
    seen x = {0, 0};
    store_each_table(s, see, &x);
    return x.n > 0 && x.n_there == x.n;
}

const void *device_store_memory(const device_store *s, int b, uint64_t *bytes) {
    *bytes = s->blocks[b].memory.at ? s->blocks[b].memory.bytes : 0;
    return s->blocks[b].memory.at;
}

const bool *device_store_copied(const device_store *s) {
    return s->copied;
}

uint64_t device_store_changes(const device_store *s) {
    return s->n_change;
}

void device_store_set_watch(device_store *s, const device_watch *watch) {
    s->watch = watch ? *watch : (device_watch){0};
}
