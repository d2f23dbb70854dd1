/* pager_experts.c - experts that are read when a router has chosen them. expert_table.h decides what is in
 * memory; this file reads. The thread of the step loop asks, takes and ends. All reads of a visit are
 * submitted together, as many as the queue takes, and the products of experts that are here run while others
 * arrive. Pages that have arrived from the model's files are packed by all threads, between two products.
 *
 * An expert has one page for each stacked matrix of its block. Experts whose pages have the same sizes are a
 * class; a slot of the class has memory for these pages. When another expert is read into a slot, it takes
 * over that memory. The slots are the experts that were resident at open, and EXPERT_RESERVE more of each
 * class, which are charged as staging, so that any cap works. Pages are read from the packed file to their
 * places, or from the model's files to staging, and are packed when they have arrived. The packed file
 * belongs to the reader of the ring, if there is one: then experts are read from the model's files. */
#include "weights/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum {
    EXPERT_RESERVE = 2,
    MAX_STACKS = 8,        /* stacked matrices of a block, second slices included */
    MAX_CLASSES = 64,      /* the blocks of a model differ in a few formats */
    STAGING = 8 << 20,     /* bytes of reads in flight, but at least two pages and one */
    MAX_STAGED = 16 << 20, /* a page with more bytes in the files is read in pieces, one after the other */
    MAX_PAGES = MAX_READ_QUEUE /* that are being read */
};

/* The stacked matrices of a block, in the order of its weights. */
typedef struct stacks {
    int n, w[MAX_STACKS], n_expert;
} stacks;

typedef struct expert_class {
    uint64_t n;
    uint64_t bytes[MAX_STACKS]; /* of an expert's pages */
} expert_class;

/* A page that is being read. */
typedef struct page_read {
    int slot, page; /* slot -1: none */
    int n_sent, n_flight;
    bool packed; /* one read of the packed file */
    bool landed; /* it is in `raw`, to be packed */
    load_reads reads;
    uint8_t *raw, *to;
} page_read;

/* The pages of an expert in a slot. */
typedef struct expert_memory {
    uint8_t *at[MAX_STACKS];
    int n_left; /* pages that have not arrived */
    bool failed;
} expert_memory;

struct experts {
    pager *p;
    expert_table table;
    int *first;            /* [n_block + 1]: number of a block's first expert */
    expert_memory *memory; /* [n_slot] */
    memory_region reserve, staging;
    uint64_t raw_each; /* 0: pages are read in pieces */
    int n_raw;         /* the first ones of `pages` have staging */
    read_queue *queue;
    pool *threads;
    load_buffer *scratch; /* for packing: of each thread */
    uint64_t charged;     /* for it */
    bool packed;          /* pages come from the packed file */
    bool damaged;         /* it is */
    page_read pages[MAX_PAGES];
    page_read *of_tag[MAX_READ_QUEUE]; /* NULL: the tag is free */
    int slot, stack;                   /* the next page to be read: of this slot's expert; slot -1: none */
    nib_status status;                 /* of the first read that failed since the visit began */
    nib_error error;
};

/* ---- sizes ---- */

static stacks stacks_of(const page_layout *l, int b) {
    const block *blk = layout_block(l->of, b);
    stacks s = {0};
    for (int i = 0; i < blk->n_weight && s.n < MAX_STACKS; i++)
        if (blk->weights[i].n_expert > 1 && blk->weights[i].shared_block < 0) {
            s.w[s.n++] = i;
            s.n_expert = (int)blk->weights[i].n_expert;
        }
    return s;
}

static int page_of(const page_layout *l, int b, const stacks *s, int stack, int e) {
    return l->places[l->first_weight[b] + s->w[stack]].first_page + e;
}

/* Index of a block's class in `all`, which grows by it; -1: there are more than MAX_CLASSES. */
static int class_of(const page_layout *l, int b, const stacks *s, expert_class *all, int *n) {
    expert_class c = {.n = (uint64_t)s->n};
    int i = 0;
    for (int j = 0; j < s->n; j++)
        c.bytes[j] = l->pages[page_of(l, b, s, j, 0)].bytes;
    while (i < *n && memcmp(&all[i], &c, sizeof c) != 0)
        i++;
    if (i == MAX_CLASSES)
        return -1;
    all[i] = c;
    *n = NUM_MAX(*n, i + 1);
    return i;
}

static uint64_t reserve_bytes(const expert_class *all, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        for (uint64_t j = 0; j < all[i].n; j++)
            sum += EXPERT_RESERVE * all[i].bytes[j];
    return sum;
}

/* What the experts of a model need. */
typedef struct expert_shape {
    expert_class classes[MAX_CLASSES];
    int n_class, n_expert, n_raw;
    uint64_t raw_each, reserve;
} expert_shape;

static expert_shape shape_of(const page_layout *l) {
    const pager files = {.layout = *l};
    expert_shape out = {0};
    bool pieces = false;
    for (int b = 0; b < l->n_block; b++) {
        const stacks s = stacks_of(l, b);
        if (s.n == 0)
            continue;
        class_of(l, b, &s, out.classes, &out.n_class);
        out.n_expert += s.n_expert;
        for (int j = 0; j < s.n; j++) {
            load_reads reads;
            uint64_t bytes = 0;
            const bool fits = pager_page_reads(&files, page_of(l, b, &s, j, 0), &reads, &bytes);
            /* the pages of other experts may begin at another offset within a FILE_ALIGN unit */
            bytes += (uint64_t)reads.n * FILE_ALIGN;
            pieces = pieces || !fits || bytes > MAX_STAGED;
            out.raw_each = NUM_MAX(out.raw_each, bytes);
        }
    }
    out.raw_each = pieces ? 0 : out.raw_each;
    out.n_raw = out.raw_each ? (int)NUM_MAX(NUM_MIN(STAGING / out.raw_each, (uint64_t)MAX_PAGES), 2u) : 0;
    out.reserve = reserve_bytes(out.classes, out.n_class);
    return out;
}

static uint64_t scratch_bytes(const page_layout *l, int n_thread) {
    return (uint64_t)n_thread * (load_buffer_bytes(l->of, 0, 0) + sizeof(load_buffer));
}

uint64_t experts_bytes(const page_layout *l, int n_thread) {
    const expert_shape s = shape_of(l);
    return s.n_expert ? s.reserve + (uint64_t)s.n_raw * s.raw_each + scratch_bytes(l, n_thread) : 0;
}

uint64_t experts_table_bytes(const page_layout *l) {
    const expert_shape s = shape_of(l);
    const uint64_t n_slot = (uint64_t)s.n_expert + (uint64_t)s.n_class * EXPERT_RESERVE;
    return s.n_expert ? (uint64_t)s.n_expert * (sizeof(expert) + sizeof(int32_t)) +
                            n_slot * (sizeof(expert_slot) + sizeof(expert_memory)) + sizeof(experts) +
                            ((uint64_t)l->n_block + 1) * sizeof(int)
                      : 0;
}

bool experts_stream(const pager *p) {
    for (int i = 0; i < p->layout.n_page; i++)
        if (p->layout.pages[i].chosen && !p->state[i].resident)
            return true;
    return false;
}

/* ---- opening ---- */

static void add_slot(experts *x, int cls, int number) {
    const int i = x->table.n_slot++;
    x->table.slots[i] = (expert_slot){number < 0 ? EXPERT_EMPTY : EXPERT_HERE, number, (int16_t)cls};
    if (number >= 0)
        x->table.experts[number].slot = i;
}

/* The experts of a block, and the slots of those that are resident. */
static void add_block(experts *x, int b, int cls) {
    const page_layout *l = &x->p->layout;
    const stacks s = stacks_of(l, b);
    for (int e = 0; e < s.n_expert; e++) {
        const int number = x->table.n_expert++;
        expert_memory *m = &x->memory[x->table.n_slot];
        bool all = true;
        x->table.experts[number] = (expert){.slot = -1, .cls = (int16_t)cls};
        for (int j = 0; j < s.n; j++) {
            m->at[j] = x->p->state[page_of(l, b, &s, j, e)].resident;
            all = all && m->at[j];
        }
        if (all)
            add_slot(x, cls, number);
    }
}

static void add_reserve(experts *x, const expert_shape *shape) {
    uint8_t *at = x->reserve.at;
    for (int c = 0; c < shape->n_class; c++)
        for (int i = 0; i < EXPERT_RESERVE; i++) {
            for (uint64_t j = 0; j < shape->classes[c].n; at += shape->classes[c].bytes[j++])
                x->memory[x->table.n_slot].at[j] = at;
            add_slot(x, c, -1);
        }
}

static nib_status make_tables(experts *x, const expert_shape *shape, nib_error *err) {
    const page_layout *l = &x->p->layout;
    const size_t n = (size_t)shape->n_expert, n_slot = n + (size_t)shape->n_class * EXPERT_RESERVE;
    x->table.experts = mem_calloc(n, sizeof *x->table.experts);
    x->table.asked = mem_calloc(n, sizeof *x->table.asked);
    x->table.slots = mem_calloc(n_slot, sizeof *x->table.slots);
    x->memory = mem_calloc(n_slot, sizeof *x->memory);
    x->first = mem_calloc((size_t)l->n_block + 1, sizeof *x->first);
    return x->table.experts && x->table.asked && x->table.slots && x->memory && x->first
               ? NIB_OK
               : nib_fail_nomem(err, experts_table_bytes(l), "the table of experts");
}

/* Memory for packing on all threads. */
static nib_status make_scratch(experts *x, nib_error *err) {
    const layout *of = x->p->layout.of;
    const int n = pool_size(x->threads);
    NIB_TRY(ledger_charge(x->p->ledger, PLACE_RAM, NIB_OWNER_STAGING, scratch_bytes(&x->p->layout, n), err));
    x->charged = scratch_bytes(&x->p->layout, n);
    x->scratch = mem_calloc((size_t)n, sizeof *x->scratch);
    if (!x->scratch)
        return nib_fail_nomem(err, x->charged, "packing of experts");
    for (int i = 0; i < n; i++)
        NIB_TRY(load_buffer_init(&x->scratch[i], of, 0, 0, NULL, err));
    return NIB_OK;
}

static nib_status start(experts *x, nib_error *err) {
    const page_layout *l = &x->p->layout;
    expert_shape shape = shape_of(l);
    ledger *to = x->p->ledger;
    NIB_TRY(make_tables(x, &shape, err));
    NIB_TRY(make_scratch(x, err));
    NIB_TRY(memory_region_open(&x->reserve, device_host(), to, NIB_OWNER_STAGING, shape.reserve, false,
                               "experts that are read", err));
    x->raw_each = shape.raw_each;
    x->n_raw = shape.n_raw;
    if (x->n_raw)
        NIB_TRY(memory_region_open(&x->staging, device_host(), to, NIB_OWNER_STAGING,
                                   (uint64_t)x->n_raw * x->raw_each, false, "reads of experts", err));
    if (x->n_raw || x->packed)
        NIB_TRY(read_queue_open(MAX_READ_QUEUE, 0, x->staging.at, x->staging.bytes, &x->queue, err));
    for (int b = 0; b < l->n_block; b++) {
        const stacks s = stacks_of(l, b);
        x->first[b] = x->table.n_expert;
        const int cls = s.n ? class_of(l, b, &s, shape.classes, &shape.n_class) : 0;
        if (cls < 0)
            return nib_fail(err, NIB_E_MODEL, "experts: the layers have more than %d combinations of formats",
                            MAX_CLASSES);
        if (s.n)
            add_block(x, b, cls);
    }
    x->first[l->n_block] = x->table.n_expert;
    add_reserve(x, &shape);
    for (int i = 0; i < MAX_PAGES; i++)
        x->pages[i].slot = -1;
    for (int i = 0; i < x->n_raw; i++)
        x->pages[i].raw = (uint8_t *)x->staging.at + (uint64_t)i * x->raw_each;
    return NIB_OK;
}

nib_status experts_open(pager *p, experts **out, nib_error *err) {
    experts *x = mem_calloc(1, sizeof *x);
    if (!x)
        return nib_fail_nomem(err, sizeof *x, "the experts");
    x->p = p;
    x->slot = -1;
    x->threads = p->options.threads;
    x->packed = p->packed && !p->streamed.first[p->layout.n_block];
    const nib_status status = start(x, err);
    if (status != NIB_OK) {
        experts_close(x);
        return status;
    }
    *out = x;
    return NIB_OK;
}

void experts_close(experts *x) {
    if (!x)
        return;
    read_queue_close(x->queue);
    memory_region_close(&x->reserve);
    memory_region_close(&x->staging);
    for (int i = 0; x->scratch && i < pool_size(x->threads); i++)
        load_buffer_deinit(&x->scratch[i]);
    mem_free(x->scratch);
    ledger_release(x->p->ledger, PLACE_RAM, NIB_OWNER_STAGING, x->charged);
    mem_free(x->table.experts);
    mem_free(x->table.asked);
    mem_free(x->table.slots);
    mem_free(x->memory);
    mem_free(x->first);
    mem_free(x);
}

/* ---- reading ---- */

static int block_of(const experts *x, int number) {
    int b = 0;
    while (x->first[b + 1] <= number)
        b++;
    return b;
}

/* Sets where an expert's pages are: in the memory of a slot, or, with m NULL, nowhere. */
static void set_places(experts *x, int number, const expert_memory *m) {
    const int b = block_of(x, number);
    const stacks s = stacks_of(&x->p->layout, b);
    for (int j = 0; j < s.n; j++)
        x->p->state[page_of(&x->p->layout, b, &s, j, number - x->first[b])].resident = m ? m->at[j] : NULL;
}

static void note(experts *x, int which, nib_status status, const nib_error *error) {
    if (status == NIB_OK)
        return;
    x->memory[which].failed = true;
    if (x->status == NIB_OK) {
        x->status = status;
        x->error = *error;
    }
}

/* A page of the slot's expert has arrived, or has failed. */
static void finish_page(experts *x, int which) {
    expert_memory *m = &x->memory[which];
    if (--m->n_left > 0)
        return;
    if (!m->failed)
        set_places(x, x->table.slots[which].expert, m);
    expert_table_arrived(&x->table, which, !m->failed);
}

/* Chooses the expert that is read next; the one that was in its slot is no longer in memory. */
static bool next_expert(experts *x) {
    int before;
    const int which = x->status == NIB_OK ? expert_table_read(&x->table, &before) : -1;
    if (which < 0)
        return false;
    if (before >= 0)
        set_places(x, before, NULL);
    x->memory[which].n_left = stacks_of(&x->p->layout, block_of(x, x->table.slots[which].expert)).n;
    x->memory[which].failed = false;
    x->slot = which;
    x->stack = 0;
    return true;
}

/* The next page to read, its slot and its place; false: none. */
static bool next_page(experts *x, page_read *out) {
    if (x->slot < 0 && !next_expert(x))
        return false;
    const page_layout *l = &x->p->layout;
    const int which = x->slot, number = x->table.slots[which].expert, b = block_of(x, number);
    const stacks s = stacks_of(l, b);
    out->slot = which;
    out->page = page_of(l, b, &s, x->stack, number - x->first[b]);
    out->to = x->memory[which].at[x->stack];
    if (++x->stack == s.n)
        x->slot = -1;
    return true;
}

static void read_in_pieces(experts *x, const page_read *r) {
    nib_error error = {NIB_OK, ""};
    note(x, r->slot, pager_page_in_turn(x->p, r->page, r->to, &x->p->row_buffer, &error), &error);
    const pager as_files = {.layout = x->p->layout};
    atomic_fetch_add(&x->p->bytes_streamed, pager_page_file_bytes(&as_files, r->page));
    finish_page(x, r->slot);
}

/* So many of `pages` may be read at a time: pages of the packed file need no staging. */
static int n_page(const experts *x) {
    return x->packed ? MAX_PAGES : x->n_raw;
}

static page_read *free_page(experts *x) {
    for (int i = 0; i < n_page(x); i++)
        if (x->pages[i].slot < 0)
            return &x->pages[i];
    return NULL;
}

static int free_tag(const experts *x) {
    int tag = 0;
    while (tag < MAX_READ_QUEUE && x->of_tag[tag])
        tag++;
    return tag < MAX_READ_QUEUE ? tag : -1;
}

static load_extent packed_extent(const experts *x, int page) {
    const weight_page *of = &x->p->layout.pages[page];
    uint64_t begin;
    file *f = packed_image(x->p->packed, &begin);
    return (load_extent){f, begin + of->image, of->bytes, of->bytes};
}

/* Submits reads of a page while tags are free. */
static void submit(experts *x, page_read *r) {
    for (int tag; r->n_sent < r->reads.n && (tag = free_tag(x)) >= 0; r->n_sent++, r->n_flight++) {
        const load_extent e =
            r->packed ? packed_extent(x, r->page) : load_reads_extent(&r->reads, r->n_sent, x->p->loader);
        uint8_t *to = r->packed ? r->to : r->raw + r->reads.list[r->n_sent].at;
        x->of_tag[tag] = r;
        read_queue_submit(x->queue, tag,
                          &(read_request){e.f, to, e.offset, file_is_direct(e.f) ? e.n_byte : e.min, e.min});
    }
}

/* Starts as many reads as fit. Without staging, reads one expert in pieces. */
static void read_more(experts *x) {
    page_read one, *r;
    for (int i = 0; i < x->n_raw; i++)
        if (x->pages[i].slot >= 0)
            submit(x, &x->pages[i]);
    while (n_page(x) == 0 && next_page(x, &one))
        read_in_pieces(x, &one);
    while ((r = free_page(x)) && free_tag(x) >= 0 && next_page(x, r)) {
        uint64_t bytes;
        r->n_sent = r->n_flight = 0;
        r->packed = x->packed;
        r->reads.n = 1;
        if (r->packed || (pager_page_reads(x->p, r->page, &r->reads, &bytes) && bytes <= x->raw_each)) {
            submit(x, r);
            continue;
        }
        read_in_pieces(x, r);
        r->slot = -1;
    }
    if (x->queue)
        read_queue_send(x->queue);
}

/* Stops using the packed file, once no read of it is in flight. */
static void leave_packed(experts *x) {
    x->packed = false;
    for (int i = 0; i < MAX_PAGES; i++)
        if (x->pages[i].slot >= 0 && x->pages[i].packed)
            return;
    if (x->p->packed) {
        pager_packed_drop(x->p, x->damaged);
        log_line(x->p->log,
                 "the packed file cannot be read or is damaged: the model's files are read instead");
    }
}

/* A page of the packed file has arrived at its place. If it is not right, it is read from the model's files.
 */
static void finish_packed(experts *x, page_read *r, bool good) {
    const uint64_t n_byte = x->p->layout.pages[r->page].bytes;
    page_state *state = &x->p->state[r->page];
    const bool right =
        good && (state->checked ||
                 packed_check(x->p->packed, page_layout_vector_units(&x->p->layout) + (uint64_t)r->page,
                              r->to, n_byte));
    atomic_fetch_add(&x->p->bytes_streamed, n_byte);
    state->checked = right;
    if (right)
        finish_page(x, r->slot);
    else
        read_in_pieces(x, r);
    r->slot = -1;
    x->damaged = x->damaged || (good && !right);
    if (!right || !x->packed)
        leave_packed(x);
}

/* Waits for a read. False: none is in flight. */
static bool land(experts *x) {
    nib_error error = {NIB_OK, ""};
    int tag = -1;
    const nib_status status = x->queue ? read_queue_wait(x->queue, &tag, &error) : NIB_OK;
    if (tag < 0)
        return false;
    page_read *r = x->of_tag[tag];
    x->of_tag[tag] = NULL;
    r->n_flight--;
    if (r->packed) {
        finish_packed(x, r, status == NIB_OK);
        return true;
    }
    note(x, r->slot, status, &error);
    if (status != NIB_OK)
        r->n_sent = r->reads.n; /* the others of this page are not needed */
    if (r->n_flight > 0 || r->n_sent < r->reads.n)
        return true;
    for (int i = 0; i < r->reads.n; i++)
        atomic_fetch_add(&x->p->bytes_streamed, r->reads.list[i].useful);
    r->landed = true;
    return true;
}

/* A thread's part of all pages that have landed. */
static void pack_part(void *arg, int thread, int n_thread) {
    const experts *x = arg;
    for (const page_read *r = x->pages; r < x->pages + x->n_raw; r++)
        if (r->landed && !x->memory[r->slot].failed)
            pager_page_pack(x->p, r->page, &r->reads, r->raw, r->to, &x->scratch[thread], thread, n_thread);
}

/* Waits for a read, takes those that are complete too, and packs their pages. False: none is in flight. */
static bool land_some(experts *x) {
    bool landed = false;
    if (!land(x))
        return false;
    while (read_queue_ready(x->queue) && land(x))
        continue;
    for (int i = 0; i < x->n_raw; i++)
        landed = landed || x->pages[i].landed;
    if (landed)
        pool_run(x->threads, pack_part, x);
    for (page_read *r = x->pages; r < x->pages + x->n_raw; r++) {
        if (!r->landed)
            continue;
        finish_page(x, r->slot);
        r->slot = -1;
        r->landed = false;
    }
    return true;
}

/* ---- for the step loop ---- */

void experts_expect(experts *x, int b, int e, float share) {
    x->table.experts[x->first[b] + e].often = share;
}

nib_status experts_ask(experts *x, int b, const expert_use *uses, int n_use, int64_t n_row, bool in_order,
                       nib_error *err) {
    expert_table_forget(&x->table);
    x->status = NIB_OK;
    NIB_TRY(loader_check_unchanged(x->p->loader, err));
    expert_table_ask(&x->table, x->first[b], x->first[b + 1] - x->first[b], uses, n_use, n_row, in_order);
    read_more(x);
    return NIB_OK;
}

nib_status experts_take(experts *x, int b, int32_t *out, int max, int *n, nib_error *err) {
    const double begin = time_now();
    for (*n = 0; *n == 0 && x->table.n_asked > 0 && x->status == NIB_OK;) {
        for (int which; *n < max && (which = expert_table_take(&x->table)) >= 0;)
            out[(*n)++] = x->table.slots[which].expert - x->first[b];
        if (*n == 0 && !land_some(x))
            break;
        read_more(x);
    }
    x->p->wait_s += time_now() - begin;
    if (x->status != NIB_OK && err)
        *err = x->error;
    return x->status;
}

void experts_end(experts *x, int b, const int32_t *taken, int n) {
    for (int i = 0; i < n; i++)
        expert_table_end(&x->table, x->table.experts[x->first[b] + taken[i]].slot);
    read_more(x);
}

void experts_forget(experts *x) {
    expert_table_forget(&x->table);
}

double experts_busy(const experts *x) {
    return x->queue ? read_queue_busy(x->queue) : 0;
}

const expert_table *experts_counts(const experts *x) {
    return &x->table;
}

view experts_view(const experts *x, int b, int w, int32_t e) {
    const weight *of = pager_weight(x->p, b, w);
    const weight_place *at = page_layout_place(&x->p->layout, b, w);
    return (view){x->p->state[at->first_page + e].resident, of->format, of->n / of->n_expert, of->k};
}
