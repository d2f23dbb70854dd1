/* Blocks on a device as a model: a device whose lanes do nothing before they must, or at any moment; random
 * lists of visits, residency, failing copies and failing reads. After its mark a kernel reads the bytes of
 * the resident model, and its slot is unchanged until the kernel has run. */
#include "base/mem.h"
#include "support/process.h"
#include "support/sanitized.h"
#include "support/tinylayout.h"
#include "support/tinymodel.h"
#include "weights/device_store_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MAX_SEGMENT = 3,
    MAX_MATRIX = 256,
    MAX_STEP = 1 << 16,
    N_WORLD = SANITIZED ? 3 : 12,
    N_PASS = SANITIZED ? 7 : 12
};

/* ---- a device with lazy lanes ---- */

/* One of: a copy; the check of a kernel's input; the wait for another lane. */
typedef struct step {
    void *to;
    const void *from;
    size_t n_byte;
    bool is_kernel;
    bool is_follow;
    device_mark behind;
} step;

typedef struct lazy {
    device base;
    step *steps[DEVICE_N_LANE];
    uint64_t n_step[DEVICE_N_LANE], n_done[DEVICE_N_LANE];
    uint64_t seed;
    int fail_in; /* calls, 0: never */
    int n_kernel, n_pinned;
} lazy;

static lazy the_device;

static uint64_t random_below(uint64_t n) {
    lazy *d = &the_device;
    d->seed = d->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (d->seed >> 33) % n;
}

static bool chance(uint64_t in) {
    return random_below(in) == 0;
}

static void run_to(device_lane lane, uint64_t end) {
    lazy *d = &the_device;
    while (d->n_done[lane] < end) {
        const step *s = &d->steps[lane][d->n_done[lane]];
        if (s->is_follow)
            run_to(s->behind.lane, s->behind.at);
        else if (s->is_kernel)
            assert_memory_equal(s->to, s->from, s->n_byte);
        else
            memcpy(s->to, s->from, s->n_byte);
        d->n_kernel += s->is_kernel;
        d->n_done[lane]++;
    }
}

/* Lanes go on when they like. */
static void some_time(void) {
    const device_lane lane = (device_lane)random_below(DEVICE_N_LANE);
    const uint64_t left = the_device.n_step[lane] - the_device.n_done[lane];
    if (left > 0 && chance(3))
        run_to(lane, the_device.n_done[lane] + 1 + random_below(left));
}

static void add(device_lane lane, step s) {
    assert_true(the_device.n_step[lane] < MAX_STEP);
    the_device.steps[lane][the_device.n_step[lane]++] = s;
    some_time();
}

static nib_status fails(nib_error *err) {
    if (the_device.fail_in > 0 && --the_device.fail_in == 0)
        return nib_fail(err, NIB_E_IO, "the lane failed");
    return NIB_OK;
}

static nib_status lazy_alloc(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    (void)d;
    (void)sparse;
    (void)err;
    *out = aligned_alloc(4096, (size_t)(n_byte + 4095) / 4096 * 4096);
    return NIB_OK;
}

static void lazy_free(device *d, void *at, uint64_t n_byte) {
    (void)d;
    (void)n_byte;
    free(at);
}

static nib_status lazy_copy(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                            nib_error *err) {
    (void)d;
    NIB_TRY(fails(err));
    add(lane, (step){.to = to, .from = from, .n_byte = (size_t)n_byte});
    return NIB_OK;
}

static nib_status lazy_mark(device *d, device_lane lane, device_mark *out, nib_error *err) {
    (void)d;
    *out = (device_mark){lane, the_device.n_step[lane]};
    const nib_status status = fails(err);
    if (status != NIB_OK)
        run_to(lane, out->at);
    return status;
}

static nib_status lazy_wait(device *d, device_mark mark, nib_error *err) {
    (void)d;
    run_to(mark.lane, mark.at);
    return fails(err);
}

static nib_status lazy_follow(device *d, device_lane lane, device_mark mark, nib_error *err) {
    (void)d;
    NIB_TRY(fails(err));
    add(lane, (step){.is_follow = true, .behind = mark});
    return NIB_OK;
}

static nib_status lazy_pin(device *d, void *host, uint64_t n_byte, nib_error *err) {
    (void)d, (void)host, (void)n_byte;
    NIB_TRY(fails(err));
    the_device.n_pinned++;
    return NIB_OK;
}

static void lazy_unpin(device *d, void *host, uint64_t n_byte) {
    (void)d, (void)host, (void)n_byte;
    the_device.n_pinned--;
}

static const device_kind lazy_kind = {.tier = NIB_TIER_VRAM,
                                      .alloc = lazy_alloc,
                                      .free = lazy_free,
                                      .pin = lazy_pin,
                                      .unpin = lazy_unpin,
                                      .copy = lazy_copy,
                                      .mark = lazy_mark,
                                      .wait = lazy_wait,
                                      .follow = lazy_follow};

static void open_lazy(uint64_t seed) {
    memset(&the_device, 0, sizeof the_device);
    the_device.base.kind = &lazy_kind;
    the_device.seed = seed;
    for (int i = 0; i < DEVICE_N_LANE; i++)
        assert_non_null(the_device.steps[i] = malloc(MAX_STEP * sizeof(step)));
}

static void finish_lanes(void) {
    for (int i = 0; i < DEVICE_N_LANE; i++)
        run_to((device_lane)i, the_device.n_step[i]);
}

static void close_lazy(void) {
    finish_lanes();
    assert_int_equal(the_device.n_pinned, 0);
    for (int i = 0; i < DEVICE_N_LANE; i++)
        free(the_device.steps[i]);
}

/* ---- a model, resident, and with pages on disk and blocks on the device ---- */

typedef struct world {
    tiny_layout of;
    pool *threads;
    ledger *l;
    pager *whole, *p;
    device_store *store;
    bool all_come;
    segment segments[MAX_SEGMENT];
    visits pass;
} world;

/* The first pages of each block stay, or all, or none. */
static pager *open_pager(world *w, bool all, bool nothing) {
    const pager_options options = {.threads = w->threads};
    nib_error err = {0};
    pager_page *pages;
    pager_need need;
    pager *p;
    int n_page = 0, n_kept = 0;
    if (pager_open(w->of.l, w->l, &options, &p, &err) || pager_list(p, &pages, &n_page, &need, &err))
        fail_msg("%s", err.message);
    uint8_t *home_of = mem_alloc((size_t)n_page + 1);
    assert_non_null(home_of);
    for (int i = 0; i < n_page; i++) {
        if (i == 0 || pages[i].block != pages[i - 1].block)
            n_kept = chance(3) ? 0 : (int)random_below(20);
        home_of[i] = all || (!nothing && n_kept-- > 0) ? PLACE_RAM : PLACE_DISK;
    }
    if ((!all && pager_source(p, NIB_AUTO, &err)) || pager_load(p, home_of, &err))
        fail_msg("%s", err.message);
    mem_free(home_of);
    mem_free(pages);
    return p;
}

/* Opens the store: everything comes, or some matrices of each block. */
static void open_store(world *w, bool all, nib_error *err) {
    bool comes[MAX_MATRIX];
    int n = 0;
    w->all_come = all;
    if (device_store_open(w->of.l, the_device.base.kind, &w->store, err))
        fail_msg("%s", err->message);
    device_store_matrices(w->store, &n);
    assert_in_range(n, 1, MAX_MATRIX);
    for (int i = 0; i < n; i++)
        comes[i] = chance(2);
    const device_store_setup how = {
        .device = &the_device.base, .ledger = w->l, .owner = NIB_OWNER_WEIGHTS, .comes = all ? NULL : comes};
    if (device_store_reserve(w->store, &how, err))
        fail_msg("%s", err->message);
    assert_int_equal(w->store->slots.memory.bytes, DEVICE_BLOCKS * device_store_slot(w->store, how.comes));
}

static void open_world(world *w, const char *path, bool nothing_stays) {
    static const uint64_t caps[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    nib_error err = {0};
    memset(w, 0, sizeof *w);
    w->of = tiny_layout_open(path);
    assert_int_equal(pool_open(2, &w->threads, NULL), NIB_OK);
    assert_int_equal(ledger_open(places_of(caps), &w->l, NULL), NIB_OK);
    w->whole = open_pager(w, true, false);
    w->p = open_pager(w, false, nothing_stays);
    open_store(w, nothing_stays || chance(3), &err);
}

static void close_world(world *w) {
    finish_lanes();
    device_store_close(w->store);
    pager_close(w->p);
    pager_close(w->whole);
    ledger_close(w->l);
    pool_close(w->threads);
    tiny_layout_close(&w->of);
}

/* Segments go through the blocks forwards and backwards in turn. */
static bool zig_zag(visits *v, visit *out) {
    for (v->block = NUM_MAX(v->block, v->first); v->block < v->end; v->block++, v->row = 0) {
        if (v->row == v->n_segment)
            continue;
        const int64_t i = v->block % 2 ? v->n_segment - 1 - v->row : v->row;
        *out = (visit){.block = v->block, .row = v->segments[i].row, .n_row = v->segments[i].n_row};
        v->row++;
        return true;
    }
    return false;
}

static void make_pass(world *w) {
    const int n_block = layout_n_block(w->of.l), n = 1 + (int)random_below(MAX_SEGMENT);
    for (int i = 0; i < n; i++)
        w->segments[i] = (segment){.n_row = 1 + (int64_t)random_below(5)};
    segments_number(w->segments, n);
    const int first = chance(3) ? (int)random_below((uint64_t)n_block) : 0;
    w->pass =
        (visits){.next = chance(3) ? zig_zag : visits_by_block,
                 .n_block = n_block,
                 .first = first,
                 .end = chance(3) ? first + (int)random_below((uint64_t)(n_block - first + 1)) : n_block,
                 .segments = w->segments,
                 .n_segment = n,
                 .n_cell = 1 + (int64_t)random_below(6),
                 .n_head = 1 + (int64_t)random_below(3),
                 .whole = true,
                 .held = true};
}

/* Kernels of a visit, after the mark of its weights. */
static nib_status queue_kernels(world *w, const visit *v, const view *views, device_mark mark,
                                nib_error *err) {
    const view *right = pager_views(w->whole, v->block);
    NIB_TRY(lazy_follow(&the_device.base, DEVICE_COMPUTE, mark, err));
    for (int i = 0; i < layout_block(w->of.l, v->block)->n_weight; i++) {
        uint64_t n = 0;
        if (!views[i].data)
            continue;
        assert_true(pack_bytes(&right[i].format, right[i].n, right[i].k, &n));
        assert_int_equal(views[i].n, right[i].n);
        add(DEVICE_COMPUTE, (step){.to = (void *)(uintptr_t)views[i].data,
                                   .from = right[i].data,
                                   .n_byte = (size_t)n,
                                   .is_kernel = true});
    }
    return NIB_OK;
}

/* All weights of products are on the device; only tables may be left on the host. */
static void check_views(const world *w, const visit *v, const view *views) {
    const program *p = &layout_block(w->of.l, v->block)->program;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_LINEAR)
            assert_non_null(views[p->ops[i].w].data);
}

static int next_block(const visits *rest, int now) {
    visits list = *rest;
    for (visit v; visits_next(&list, &v);)
        if (v.block != now)
            return v.block;
    return -1;
}

/* Whether the block is copied ahead: it comes, and no other block has to load what stays before. */
static bool may_prefetch(const world *w, int next) {
    for (int b = 0; b < layout_n_block(w->of.l); b++)
        if (!device_store_is_loaded(w->store, b) && !w->all_come)
            return false;
    return device_store_comes(w->store, next);
}

static nib_status run_visit(world *w, const visit *v, const visits *rest, bool sound, nib_error *err) {
    const view *views;
    device_mark mark;
    NIB_TRY(device_store_acquire(w->store, w->p, v, rest, &views, &mark, err));
    const bool comes = device_store_comes(w->store, v->block);
    const int next = next_block(rest, v->block);
    assert_true(comes == (device_blocks_slot(&w->store->slots, v->block) != NULL));
    if (sound && comes && next >= 0 && may_prefetch(w, next)) /* two in flight */
        assert_non_null(device_blocks_slot(&w->store->slots, next));
    check_views(w, v, views);
    NIB_TRY(queue_kernels(w, v, views, mark, err));
    NIB_TRY(device_store_release(w->store, v, rest, err));
    if (v->again && comes)
        assert_true(device_blocks_slot(&w->store->slots, v->block)->was_followed);
    return NIB_OK;
}

static nib_status run_list(world *w, bool sound, nib_error *err) {
    nib_status status = NIB_OK;
    visits list = w->pass;
    pager_begin(w->p, &w->pass);
    for (visit v; status == NIB_OK && visits_next(&list, &v);)
        status = run_visit(w, &v, &list, sound, err);
    pager_end(w->p);
    finish_lanes();
    device_store_end(w->store);
    return status;
}

static nib_status run_pass(world *w, bool sound, nib_error *err) {
    make_pass(w);
    return run_list(w, sound, err);
}

static const tiny_shape shapes[] = {{TYPE_Q8_0, 6, 128, 256, 4, 2, 2048, 128, true},
                                    {TYPE_Q4_1, 3, 512, 1536, 8, 4, 2048, 128, false},
                                    {TYPE_Q4_0, 10, 64, 96, 4, 2, 512, 64, false}};

/* Made once for all worlds. */
static const char *model_of(uint64_t i) {
    static const char *const names[] = {"blocks0.gguf", "blocks1.gguf", "blocks2.gguf"};
    static const char *made[3];
    if (!made[i])
        made[i] = tiny_model(names[i], &shapes[i]);
    return made[i];
}

/* The host reads each page once for all visits in a row of its block. */
static void each_page_once(void **state) {
    enum { N = SANITIZED ? 4 : 10 };
    static world w;
    nib_error err = {0};
    pager_stats before, after;
    pager_need need;
    (void)state;
    for (int s = 0; s < 3; s++) {
        open_lazy(7);
        open_world(&w, model_of((uint64_t)s), true);
        need = pager_needs(w.of.l, 2);
        pager_get_stats(w.p, &before);
        for (int i = 0; i < N; i++) {
            w.segments[0] = (segment){.n_row = 5};
            w.pass = (visits){.next = visits_by_block,
                              .n_block = layout_n_block(w.of.l),
                              .end = layout_n_block(w.of.l),
                              .segments = w.segments,
                              .n_segment = 1,
                              .n_cell = 2,
                              .n_head = 2,
                              .whole = true,
                              .held = true};
            assert_int_equal(run_list(&w, true, &err), NIB_OK);
        }
        pager_get_stats(w.p, &after);
        assert_true(after.bytes_streamed - before.bytes_streamed <= N * after.pass_bytes + need.ring);
        close_world(&w);
        close_lazy();
    }
}

static void any_order(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= N_WORLD; seed++) {
        static world w;
        nib_error err = {0};
        open_lazy(seed);
        open_world(&w, model_of(seed % 3), false);
        for (int i = 0; i < N_PASS; i++)
            if (run_pass(&w, true, &err))
                fail_msg("%s", err.message);
        close_world(&w);
        assert_true(the_device.n_kernel > N_PASS);
        close_lazy();
    }
}

/* Copies, marks and reads fail now and then: a pass ends with that error or with the right bytes, and the
 * next one is sound. */
static void any_failure(void **state) {
    int n_failed = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= N_WORLD; seed++) {
        static world w;
        nib_error err = {0};
        open_lazy(seed + 100);
        open_world(&w, model_of(seed % 3), false);
        for (int i = 0; i < N_PASS; i++) {
            the_device.fail_in = chance(2) ? 1 + (int)random_below(60) : 0;
            fault_arm(FAULT_READ, chance(2) ? 1 + (int64_t)random_below(30) : 0);
            const nib_status status = run_pass(&w, false, &err);
            the_device.fail_in = 0;
            fault_arm(FAULT_READ, 0);
            n_failed += status != NIB_OK;
            /* a prefetch that failed may still be in flight, and ends one more pass */
            if (run_pass(&w, false, &err) && run_pass(&w, false, &err))
                fail_msg("after a failure: %s", err.message);
        }
        close_world(&w);
        close_lazy();
    }
    assert_true(n_failed >= N_WORLD / 2); /* a failed prefetch is tried again */
}

/* ---- another source: some blocks are streamed in each pass, and reordered after their copies ---- */

typedef struct some {
    world *w;
    bool comes[64];
    device_blocks blocks;
} some;

static bool some_come(const void *user, const visit *v, block_when when) {
    (void)when;
    return ((const some *)user)->comes[v->block];
}

/* Reordering reads the block's bytes. */
static nib_status load_some(void *user, device_block *s, const visit *v, const visits *rest, block_when when,
                            nib_error *err) {
    some *x = user;
    const block *of = layout_block(x->w->of.l, v->block);
    const view *from = pager_views(x->w->whole, v->block);
    device *d = &the_device.base;
    uint8_t *at = s->at;
    device_mark copied;
    (void)rest;
    (void)when;
    assert_true(x->comes[v->block]);
    for (int pass = 0; pass < 2; pass++, at = s->at) {
        for (int i = 0; i < of->n_weight; i++) {
            uint64_t n = 0;
            assert_true(pack_bytes(&from[i].format, from[i].n, from[i].k, &n));
            if (pass == 0)
                NIB_TRY(d->kind->copy(d, DEVICE_LOAD_WEIGHTS, at, from[i].data, n, err));
            else
                add(DEVICE_ARRANGE_WEIGHTS,
                    (step){.to = at, .from = from[i].data, .n_byte = (size_t)n, .is_kernel = true});
            at += n;
        }
        if (pass == 0) {
            NIB_TRY(d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &copied, err));
            NIB_TRY(d->kind->follow(d, DEVICE_ARRANGE_WEIGHTS, copied, err));
        }
    }
    return NIB_OK;
}

/* The next streamed block after `now`, in this pass or in the next one over the same stage. */
static int next_some(const some *x, const visits *rest, int now) {
    visits list = *rest;
    for (visit v; visits_next(&list, &v);)
        if (v.block != now && x->comes[v.block])
            return v.block;
    for (int b = rest->first; b < rest->end; b++)
        if (x->comes[b])
            return b;
    return now;
}

static nib_status visit_some(some *x, const visit *v, const visits *rest, bool sound, nib_error *err) {
    const device_block *s;
    NIB_TRY(device_blocks_acquire(&x->blocks, v, rest, &s, err));
    const int next = next_some(x, rest, v->block);
    assert_true(s->block == v->block);
    assert_true(!sound || device_blocks_slot(&x->blocks, next) != NULL);
    NIB_TRY(lazy_follow(&the_device.base, DEVICE_COMPUTE, s->loaded, err));
    const view *right = pager_views(x->w->whole, v->block);
    const uint8_t *at = s->at;
    for (int i = 0; i < layout_block(x->w->of.l, v->block)->n_weight; i++) {
        uint64_t n = 0;
        assert_true(pack_bytes(&right[i].format, right[i].n, right[i].k, &n));
        add(DEVICE_COMPUTE,
            (step){
                .to = (void *)(uintptr_t)at, .from = right[i].data, .n_byte = (size_t)n, .is_kernel = true});
        at += n;
    }
    return device_blocks_release(&x->blocks, v, rest, err);
}

static nib_status pass_of_some(some *x, bool sound, nib_error *err) {
    nib_status status = NIB_OK;
    make_pass(x->w);
    visits list = x->w->pass;
    for (visit v; status == NIB_OK && visits_next(&list, &v);)
        if (x->comes[v.block])
            status = visit_some(x, &v, &list, sound, err);
    run_to(DEVICE_COMPUTE, the_device.n_step[DEVICE_COMPUTE]); /* the others go on over the pass's end */
    device_blocks_end(&x->blocks);
    return status;
}

static void pass_after_pass(void **state) {
    int n_failed = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= N_WORLD; seed++) {
        static world w;
        static some x;
        nib_error err = {0};
        open_lazy(seed + 200);
        open_world(&w, model_of(seed % 3), false);
        const int n_block = layout_n_block(w.of.l);
        x = (some){.w = &w};
        for (int b = 0; b < n_block; b++)
            x.comes[b] = chance(2);
        const block_source from = {.user = &x,
                                   .lane = DEVICE_ARRANGE_WEIGHTS,
                                   .n_block = n_block,
                                   .needs_slot = some_come,
                                   .load = load_some};
        const uint64_t each = device_store_slot(w.store, NULL) + device_store_fixed(w.store);
        assert_int_equal(
            device_blocks_open(&x.blocks, &from, each, &the_device.base, w.l, NIB_OWNER_WEIGHTS, &err),
            NIB_OK);
        for (int i = 0; i < N_PASS; i++) {
            the_device.fail_in = chance(2) ? 1 + (int)random_below(60) : 0;
            const bool sound = the_device.fail_in == 0;
            n_failed += pass_of_some(&x, sound, &err) != NIB_OK;
            the_device.fail_in = 0;
            assert_int_equal(pass_of_some(&x, true, &err), NIB_OK);
        }
        finish_lanes();
        device_blocks_close(&x.blocks);
        close_world(&w);
        close_lazy();
    }
    assert_true(n_failed > 0);
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order),
        cmocka_unit_test(each_page_once),
        cmocka_unit_test(any_failure),
        cmocka_unit_test(pass_after_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
