/* The states of pages and slots as a model: random lists of visits, random ends of reads and packing,
 * failures, passes that are given up, rings of any size. After every event the invariants of
 * weights/page_ring.h hold, and the state agrees with a plain model, which has lists of pages and no slots.
 */
#include "weights/page_ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MAX_BLOCK = 7,
    MAX_PAGE = 24, /* of a block */
    MAX_USE = MAX_BLOCK * MAX_PAGE,
    MAX_SEGMENT = 3,
    MAX_ROW = 6, /* of a segment */
    MAX_READ = 3,
    MAX_LIST = MAX_USE * MAX_SEGMENT * MAX_ROW,
    N_WORLD = 400,
    N_PASS = 6
};

/* A page that a pass uses. */
typedef struct use {
    page_cursor at;
    bool read; /* the reader expects it: no page is kept for it */
} use;

typedef struct world {
    uint64_t seed;
    int n_block, n_page;
    int first[MAX_BLOCK + 1], pages[MAX_USE];
    visit_pages streamed;
    page_state state[MAX_USE];
    int buffers[RING_BUFFERS]; /* a buffer holds the page that was written there; -1: anything */
    int read_of[RING_BUFFERS]; /* and the raw page that was read, and is to be packed */
    bool fails[MAX_USE];       /* the next read of this page */
    bool packs;                /* read pages have to be packed */
    page_ring g;
    segment segments[MAX_SEGMENT];
    visits pass;
    use uses[MAX_LIST]; /* the plain model: of the pass, in order */
    int n_use, at;
    const slot *pinned;
    slot *leaving[RING_SLOTS]; /* copies that have not ended */
    int page_of[RING_SLOTS];   /* and what they read */
    int n_leaving, n_left;
    int n_assigned, n_told; /* pages, errors */
} world;

static uint64_t random_below(world *w, uint64_t n) {
    w->seed = w->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (w->seed >> 33) % n;
}

static bool chance(world *w, uint64_t in) {
    return random_below(w, in) == 0;
}

/* ---- lists ---- */

/* Segments go through the blocks one after the other, all blocks each. */
static bool one_by_one(visits *v, visit *out) {
    while (v->row < v->n_segment && v->block >= v->end) {
        v->block = 0;
        v->row++;
    }
    if (v->row >= v->n_segment)
        return false;
    v->block = NUM_MAX(v->block, v->first);
    *out = (visit){.block = v->block++, .row = v->segments[v->row].row, .n_row = v->segments[v->row].n_row};
    return true;
}

static void make_list(world *w) {
    const int n = 1 + (int)random_below(w, MAX_SEGMENT);
    for (int i = 0; i < n; i++) {
        const int64_t n_row = 1 + (int64_t)random_below(w, MAX_ROW);
        w->segments[i] =
            (segment){.n_row = n_row, .head_row = n_row - (int64_t)random_below(w, (uint64_t)n_row + 1)};
    }
    segments_number(w->segments, n);
    const int first = chance(w, 3) ? (int)random_below(w, (uint64_t)w->n_block) : 0;
    const int end =
        chance(w, 3) ? first + (int)random_below(w, (uint64_t)(w->n_block - first + 1)) : w->n_block;
    w->pass = (visits){.next = chance(w, 4) ? one_by_one : visits_by_block,
                       .n_block = w->n_block,
                       .first = first,
                       .end = end,
                       .segments = w->segments,
                       .n_segment = n,
                       .n_cell = 1 + (int64_t)random_below(w, 8),
                       .n_head = 1 + (int64_t)random_below(w, 3),
                       .whole = chance(w, 2),
                       .apart = chance(w, 2)};
}

/* All uses of the pass, as visit_pages.h defines them. */
static void list_uses(world *w) {
    visits list = w->pass;
    int before = -1;
    w->n_use = w->at = 0;
    for (visit v; visits_next(&list, &v); before = v.block) {
        const int first = w->first[v.block], n = w->first[v.block + 1] - first;
        const int stay = n <= w->streamed.n_slot ? n : w->streamed.n_slot - 4;
        assert_int_equal(visit_pages_staying(n, w->streamed.n_slot), stay);
        for (int i = 0; i < n; i++)
            w->uses[w->n_use++] =
                (use){{.at = v, .rest = list, .i = first + i}, before != v.block || i >= stay};
    }
    assert_true(w->n_use <= MAX_LIST);
}

/* ---- the invariants ---- */

static int number_of(const world *w, const uint8_t *buffer) {
    const uint8_t *begin = (const uint8_t *)w->buffers;
    assert_true(buffer >= begin && buffer < begin + sizeof w->buffers);
    return (int)((size_t)(buffer - begin) / sizeof *w->buffers);
}

static void check_slot(const world *w, int i, int *owners) {
    const slot *s = &w->g.slots[i];
    if (s->state == SLOT_EMPTY)
        return;
    owners[number_of(w, s->buffer)]++;
    if (s->state == SLOT_PACKING)
        owners[number_of(w, s->packed)]++;
    if (s->discard) {
        assert_true(s->state == SLOT_READING || s->state == SLOT_PACKING || s->n_leaving > 0);
        return;
    }
    assert_int_equal(w->state[s->page].slot, i);
    assert_true(s->n_use >= 1);
    if (s->state == SLOT_READY || s->state == SLOT_PINNED)
        assert_int_equal(w->buffers[number_of(w, s->buffer)], s->page);
    if (s->state == SLOT_ARRIVED || s->state == SLOT_PACKING)
        assert_int_equal(w->read_of[number_of(w, s->buffer)], s->page);
    assert_true(s->state != SLOT_FAILED || w->g.stalled);
}

static void check(const world *w) {
    const page_ring *g = &w->g;
    int owners[RING_BUFFERS] = {0}, n_slot = w->streamed.n_slot, uses = 0, n_packing = 0, n_pinned = 0;
    for (int i = 0; i < g->n_spare; i++)
        owners[number_of(w, g->spare[i])]++;
    for (int i = 0; i < n_slot; i++) {
        check_slot(w, i, owners);
        uses += g->slots[i].n_use;
        n_packing += g->slots[i].state == SLOT_PACKING;
        n_pinned += g->slots[i].state == SLOT_PINNED;
    }
    for (int i = 0; i <= n_slot; i++) /* every buffer has one owner */
        assert_int_equal(owners[i], 1);
    for (int i = 0; i < w->n_leaving; i++) /* nobody writes what is still copied */
        assert_int_equal(w->buffers[number_of(w, w->leaving[i]->buffer)], w->page_of[i]);
    assert_int_equal(n_packing, g->n_packing);
    assert_int_equal(n_pinned, w->pinned != NULL);
    assert_true(g->n_spare + g->n_packing >= 1);
    assert_true(uses <= n_slot);
    for (int page = 0; page < w->n_page; page++) {
        const int of = w->state[page].slot;
        assert_true(of < 0 || (g->slots[of].page == page && !g->slots[of].discard));
    }
}

/* ---- events ---- */

static bool is_absent(const world *w, int page) {
    return !w->state[page].resident && w->state[page].slot < 0;
}

/* The page that is read next: the first later use of this pass whose page is absent and not kept; -1: it
 * belongs to the next pass. */
static int foreseen(const world *w) {
    for (int i = w->at; i < w->n_use && w->g.in_pass; i++)
        if (w->uses[i].read && is_absent(w, w->pages[w->uses[i].at.i]))
            return w->pages[w->uses[i].at.i];
    return -1;
}

static bool take(world *w) {
    const int page = foreseen(w);
    const bool stalled = w->g.stalled;
    slot *s = page_ring_assign(&w->g);
    if (!s) {
        assert_true(stalled || !page_ring_has_free_slot(&w->g));
        return false;
    }
    w->n_assigned++;
    assert_true(!stalled && (page < 0 || s->page == page));
    assert_int_equal(s->state, SLOT_READING);
    s->n_read = 1 + (int)random_below(w, MAX_READ);
    s->packs = w->packs;
    w->read_of[number_of(w, s->buffer)] = w->buffers[number_of(w, s->buffer)] = -1;
    return true;
}

static bool send(world *w) {
    slot *s = page_ring_to_send(&w->g);
    if (!s)
        return false;
    s->n_sent++;
    s->n_flight++;
    return true;
}

static bool come(world *w) {
    const int n = w->streamed.n_slot, from = (int)random_below(w, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        slot *s = &w->g.slots[(from + i) % n];
        if (s->state != SLOT_READING || s->n_flight == 0)
            continue;
        s->n_flight--;
        if (w->fails[s->page] && s->status == NIB_OK)
            s->status = NIB_E_IO;
        (s->packs ? w->read_of : w->buffers)[number_of(w, s->buffer)] = s->page;
        page_ring_finish(&w->g, s);
        return true;
    }
    return false;
}

static bool pack(world *w) {
    slot *s = page_ring_pack(&w->g);
    if (!s)
        return false;
    w->buffers[number_of(w, s->packed)] = -1;
    return true;
}

static bool packed(world *w) {
    for (int i = 0; i < w->streamed.n_slot; i++) {
        slot *s = &w->g.slots[i];
        if (s->state != SLOT_PACKING)
            continue;
        w->buffers[number_of(w, s->packed)] = w->read_of[number_of(w, s->buffer)];
        page_ring_packed(&w->g, s);
        return true;
    }
    return false;
}

/* A copy ends, any of them. */
static bool left(world *w) {
    if (w->n_leaving == 0)
        return false;
    const int i = (int)random_below(w, (uint64_t)w->n_leaving);
    slot *s = w->leaving[i];
    w->leaving[i] = w->leaving[--w->n_leaving];
    w->page_of[i] = w->page_of[w->n_leaving];
    w->n_left++;
    page_ring_left(&w->g, s);
    return true;
}

/* One step of the reader, the packer or a device, if there is one; false: there is nothing to do. */
static bool something(world *w) {
    static bool (*const all[])(world * w) = {take, send, come, pack, packed, left};
    const int n = (int)NUM_COUNT(all), from = (int)random_below(w, (uint64_t)n);
    for (int i = 0; i < n; i++)
        if (all[(from + i) % n](w)) {
            check(w);
            return true;
        }
    return false;
}

/* ---- passes ---- */

/* The next use of the pass; false: its page failed, which ends the pass. */
static bool use_next(world *w) {
    const use *u = &w->uses[w->at];
    const int page = w->pages[u->at.i];
    const bool should_fail = w->fails[page];
    const uint64_t n_order = w->g.n_order;
    slot *s;
    while (!(s = page_ring_acquire(&w->g, &u->at))) {
        check(w);
        assert_true(something(w)); /* the page arrives: there is always a possible step */
    }
    assert_int_equal(w->g.n_order, n_order); /* the pass began with the right order */
    if (s->state == SLOT_FAILED) {
        assert_true(should_fail && s->page == page && s->status == NIB_E_IO);
        w->fails[page] = false;
        page_ring_clear_failed(&w->g, s);
        w->n_told++;
        check(w);
        return false;
    }
    w->pinned = s;
    assert_int_equal(s->page, page);
    assert_int_equal(s->state, SLOT_PINNED);
    assert_ptr_equal(s, &w->g.slots[w->state[page].slot]);
    for (uint64_t n = random_below(w, 6); n > 0 && something(w); n--)
        assert_int_equal(w->buffers[number_of(w, s->buffer)], page); /* nobody writes there */
    w->pinned = NULL;
    const bool leaves = w->n_leaving < RING_SLOTS && chance(w, 2);
    w->page_of[w->n_leaving % RING_SLOTS] = page;
    slot *const released = page_ring_release(&w->g, &u->at, leaves);
    if (leaves)
        w->leaving[w->n_leaving++] = released;
    check(w);
    w->at++;
    return true;
}

/* Prefetched pages are the first ones of the coming uses. */
static void run_pass(world *w, bool undisturbed) {
    const int before = w->n_assigned;
    int reads = 0;
    make_list(w);
    list_uses(w);
    page_ring_begin(&w->g, &w->pass);
    check(w);
    const uint64_t given_up = undisturbed || !chance(w, 5) ? UINT64_MAX : random_below(w, 20);
    while (w->at < w->n_use && (uint64_t)w->at < given_up && use_next(w))
        ;
    for (int i = 0; i < w->n_use; i++)
        reads += w->uses[i].read;
    /* never more than the list's own pages, and a ring ahead */
    if (w->at == w->n_use)
        assert_true(w->n_assigned - before <= reads + w->streamed.n_slot);
    page_ring_end(&w->g);
    memset(w->segments, 0xff, sizeof w->segments); /* nobody looks at them any more */
    check(w);
    for (uint64_t n = random_below(w, 40); n > 0 && something(w); n--)
        ;
}

static void open_world(world *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->n_block = 1 + (int)random_below(w, MAX_BLOCK);
    w->packs = chance(w, 2);
    int n = 0;
    for (int b = 0; b < w->n_block; b++) {
        w->first[b] = n;
        for (uint64_t i = chance(w, 4) ? 0 : random_below(w, MAX_PAGE); i > 0; i--)
            w->pages[n++] =
                w->n_page > 0 && chance(w, 8) ? (int)random_below(w, (uint64_t)w->n_page) : w->n_page++;
    }
    w->first[w->n_block] = n;
    w->streamed = (visit_pages){w->pages, w->first, 5 + (int)random_below(w, RING_SLOTS - 4), NULL};
    page_ring_open(&w->g, &w->streamed, w->n_block, w->state, w->n_page, (uint8_t *)w->buffers,
                   sizeof *w->buffers);
    check(w);
}

static void any_order_of_events(void **state) {
    static world w;
    int n_assigned = 0, n_left = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= N_WORLD; seed++) {
        open_world(&w, seed);
        for (int i = 0; i < N_PASS; i++)
            run_pass(&w, false);
        n_assigned += w.n_assigned;
        n_left += w.n_left;
    }
    assert_true(n_assigned > N_WORLD * 100 && n_left > N_WORLD * 20);
}

static void any_failures(void **state) {
    static world w;
    int n_told = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= N_WORLD; seed++) {
        open_world(&w, seed + N_WORLD);
        for (int i = 0; i < N_PASS; i++) {
            for (int page = 0; page < w.n_page; page++)
                w.fails[page] = w.fails[page] || chance(&w, 30);
            run_pass(&w, false);
        }
        n_told += w.n_told;
        memset(w.fails, 0, sizeof w.fails);
        while (something(&w))
            ;
        run_pass(&w, true); /* then everything is well again */
        assert_int_equal(w.at, w.n_use);
    }
    assert_true(n_told > N_WORLD);
}

/* A block that the ring holds is read once. */
static void nothing_is_read_twice(void **state) {
    static world w;
    (void)state;
    open_world(&w, 1);
    w.n_block = 2;
    w.n_page = 5;
    memcpy(w.first, (int[]){0, 2, 5}, 3 * sizeof *w.first);
    memcpy(w.pages, (int[]){0, 1, 2, 3, 4}, 5 * sizeof *w.pages);
    w.streamed.n_slot = 8;
    page_ring_open(&w.g, &w.streamed, w.n_block, w.state, w.n_page, (uint8_t *)w.buffers, sizeof *w.buffers);
    const segment one = {.n_row = 1};
    for (int pass = 0; pass < 3; pass++) {
        w.pass = visits_of_one_row(2, 0, 2);
        w.pass.segments = &one;
        list_uses(&w);
        page_ring_begin(&w.g, &w.pass);
        while (w.at < w.n_use)
            assert_true(use_next(&w));
        page_ring_end(&w.g);
    }
    assert_int_equal(w.n_assigned, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_events),
        cmocka_unit_test(any_failures),
        cmocka_unit_test(nothing_is_read_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
