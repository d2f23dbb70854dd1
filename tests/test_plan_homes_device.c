/* Layers that do not fit on a GPU: memory and link share them so that neither waits, and many rows are
 * computed where products are fast. */
#include "base/num.h"
#include "plan/homes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A layer of 100 MB: 1 ms of memory at 100 GB/s, 2 ms of the link, 0.1 ms of products a row. */
static plan_rates usual(void) {
    plan_rates r = {.at = {[PLACE_RAM].to[PLACE_GPU] = 50e9, [PLACE_GPU].read = INFINITY}, .two_slices = 1.5};
    r.one_row[4] = 100e9;
    r.many_rows[4] = 2e12;
    return r;
}
static const homes_layer layer = {.bytes = 100000000, .macs = 200000000, .bits = 4};

static void both_work(void **state) {
    (void)state;
    const plan_rates r = usual();
    homes_division o;
    homes_divide(&r, &(homes_layers){layer, 16, 0, 0}, 64, &o);
    assert_int_equal(o.n_streamed, 5);
    assert_true(fabs(o.seconds - 11e-3) < 1e-6); /* 11 layers of 1 ms; 5 of 2 ms */
    /* 11 (1 + 0.1 (m - 1)) ms are at most the link's 32 ms */
    assert_int_equal(o.max_rows, 20);
    homes_divide(&r, &(homes_layers){layer, 16, 0, 0}, 8, &o);
    assert_int_equal(o.max_rows, 8);
}

/* S: stays, c: is streamed, p: in place. */
/* The link copies all experts of a layer, the processor reads those that are chosen. */
static void experts_stay(void **state) {
    (void)state;
    const plan_rates r = usual();
    homes_layer of = layer;
    homes_division dense, mixture;
    of.chosen = of.bytes / 10 * 9;
    of.share = 1;
    homes_divide(&r, &(homes_layers){of, 16, 0, 0}, 64, &dense);
    assert_true(dense.n_streamed > 0);
    of.share = 1.0 / 16;
    homes_divide(&r, &(homes_layers){of, 16, 0, 0}, 64, &mixture);
    assert_true(mixture.n_streamed < dense.n_streamed && mixture.seconds < dense.seconds / 3);
    assert_true(homes_read_bytes(100, 90, 0.1, 1) == 100 - 90 * 0.9);
    assert_true(homes_read_bytes(100, 0, 0, 1) == 100);
}

static void check_places(int n_resident, int n_streamed, const char *want) {
    static const char letters[] = {[HOME_RESIDENT] = 'S', [HOME_STREAMED] = 'c', [HOME_IN_PLACE] = 'p'};
    block_home places[64];
    char text[64] = "";
    const int n = (int)strlen(want);
    homes_order(n, n_resident, n_streamed, places);
    for (int i = 0; i < n; i++)
        text[i] = letters[places[i].kind];
    assert_string_equal(text, want);
}

static void where_layers_stand(void **state) {
    (void)state;
    check_places(0, 5, "pppcppcppcppcppc");
    check_places(7, 2, "pppcSSSpppcSSSS");
    check_places(3, 0, "pppppSSS"); /* one change of device */
    check_places(4, 4, "cScScScS");
    check_places(1, 4, "ccccS");
    check_places(5, 0, "SSSSS");
    check_places(0, 0, "ppp");
}

static void one_of_them(void **state) {
    (void)state;
    plan_rates r = usual();
    homes_division o;
    r.at[PLACE_RAM].to[PLACE_GPU] = 1e9;
    homes_divide(&r, &(homes_layers){layer, 16, 0, 0}, 64, &o);
    assert_int_equal(o.n_streamed, 0);
    assert_int_equal(o.max_rows, 64);
    r.at[PLACE_RAM].to[PLACE_GPU] = 1e13;
    homes_divide(&r, &(homes_layers){layer, 16, 0, 0}, 64, &o);
    assert_true(o.n_streamed >= 15);
    r.one_row[4] = 1e6; /* a very slow processor */
    homes_divide(&r, &(homes_layers){layer, 16, 0, 0}, 64, &o);
    assert_int_equal(o.n_streamed, 16);
    assert_int_equal(o.max_rows, 0);
    homes_divide(&r, &(homes_layers){layer, 0, 0, 0}, 64, &o);
    assert_int_equal(o.n_streamed, 0);
}

static void more_activation_bits_take_longer(void **state) {
    (void)state;
    const plan_rates r = usual();
    homes_layer two = layer;
    homes_division a, b;
    two.two = true;
    homes_divide(&r, &(homes_layers){layer, 32, 0, 0}, 64, &a);
    homes_divide(&r, &(homes_layers){two, 32, 0, 0}, 64, &b);
    assert_true(b.n_streamed > a.n_streamed && b.seconds > a.seconds);
}

/* ---- the whole decision: four layers of 10 MiB (of VRAM 12, with CUDA's pieces), a head of 20 (22) ---- */

enum { N_BLOCK = 6, MIB = 1 << 20, ALWAYS = MIB, BESIDE = 3 * MIB };

static homes_question question(homes_block blocks[N_BLOCK], uint64_t capacity) {
    for (int b = 0; b < N_BLOCK; b++)
        blocks[b] = (homes_block){.bytes = b == 0             ? 0
                                           : b == N_BLOCK - 1 ? 20 * MIB
                                                              : 10 * MIB,
                                  .cache = b % 5 ? 65536 : 0,
                                  .n_launch = 5};
    return (homes_question){.blocks = blocks,
                            .n_block = N_BLOCK,
                            .fixed = ALWAYS,
                            .layer = layer,
                            .capacity = capacity,
                            .capacity_of = "the cap",
                            .capped = true,
                            .driver = 7 * MIB,
                            .activations = BESIDE,
                            .n_page = 4,
                            .page = 4 * 65536,
                            .max_rows = 64};
}

static void check_split(uint64_t capacity, int max_layers, int n_resident, int n_not_resident) {
    const plan_rates r = usual();
    homes_block blocks[N_BLOCK];
    homes_question q = question(blocks, capacity);
    homes_split s;
    nib_error err = {0};
    q.max_layers = max_layers;
    if (homes_split_make(&q, &r, &s, &err))
        fail_msg("%s", err.message);
    assert_true(s.weights + s.others <= capacity);
    assert_int_equal(s.n_not_resident, n_not_resident);
    int n = 0;
    uint64_t here = ALWAYS;
    for (int b = 1; b < N_BLOCK; b++) {
        n += s.of[b].kind == HOME_RESIDENT;
        here += s.of[b].kind == HOME_RESIDENT ? homes_block_bytes(blocks[b].bytes) : 0;
    }
    assert_int_equal(n, n_resident);
    assert_true(s.resident == here);
    homes_split_clear(&s);
}

static void as_much_as_fits_is_resident(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + MIB + 4 * 12 * MIB + 22 * MIB };
    check_split(ALL, 0, 5, 0); /* no slots: all of it takes less than all but one */
    check_split(ALL - 1, 0, 3, 2);
    check_split(ALL, 2, 3, 2);            /* two layers and the head */
    check_split(ALL - 28 * MIB, 0, 1, 4); /* the head alone */
    check_split(ALL - 30 * MIB, 0, 0, 5);
    homes_block blocks[N_BLOCK];
    const homes_question q = question(blocks, ALL);
    assert_true(homes_all_resident(&q) == ALL + q.driver);
}

/* The head's sketch: made if all blocks stay beside it; if it is requested, layers leave for it; a streamed
 * head has none. */
static void a_sketch_beside_them(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + MIB + 4 * 12 * MIB + 22 * MIB, SKETCH = 9 * MIB, TAKES = 10 * MIB };
    static const struct {
        uint64_t capacity;
        bool needed, has;
        int n_not_resident;
    } cases[] = {{ALL + TAKES, false, true, 0}, {ALL + TAKES - 1, false, false, 0},
                 {ALL, true, true, 3},          {ALL + TAKES, true, true, 0},
                 {ALL - 1, false, false, 2},    {45 * MIB, true, false, 5}};
    const plan_rates r = usual();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        homes_block blocks[N_BLOCK];
        homes_question q = question(blocks, cases[i].capacity);
        homes_split s;
        nib_error err = {0};
        q.sketch = SKETCH;
        q.needs_sketch = cases[i].needed;
        if (homes_split_make(&q, &r, &s, &err))
            fail_msg("case %zu: %s", i, err.message);
        assert_true(s.weights + s.others <= cases[i].capacity);
        assert_int_equal(s.has_sketch, cases[i].has);
        assert_int_equal(s.n_not_resident, cases[i].n_not_resident);
        homes_split_clear(&s);
    }
}

/* Tables get only the memory that all blocks and everything else leave. */
static void tables_come_last(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + MIB + 4 * 12 * MIB + 22 * MIB, TABLES = 6 * MIB };
    const struct {
        uint64_t capacity;
        int max_layers;
        bool there;
    } cases[] = {
        {ALL + TABLES, 0, true}, {ALL + TABLES - 1, 0, false}, {ALL - 1, 0, false}, {2 * ALL, 2, false}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        const plan_rates r = usual();
        homes_block blocks[N_BLOCK];
        homes_question q = question(blocks, cases[i].capacity);
        homes_split with, without;
        nib_error err = {0};
        q.max_layers = cases[i].max_layers;
        assert_int_equal(homes_split_make(&q, &r, &without, &err), NIB_OK);
        blocks[0].bytes = 5 * MIB;
        assert_int_equal(homes_split_make(&q, &r, &with, &err), NIB_OK);
        assert_int_equal(with.tables, cases[i].there);
        assert_true(with.weights == without.weights + (cases[i].there ? TABLES : 0));
        assert_true(with.resident == without.resident + (cases[i].there ? TABLES : 0));
        assert_int_equal(with.n_not_resident, without.n_not_resident);
        homes_split_clear(&with);
        homes_split_clear(&without);
    }
}

/* Four matrices a layer, and the head's. */
enum { N_MATRIX = 4 * (N_BLOCK - 2) + 1 };
static void cut(homes_question *q, uint64_t matrices[N_MATRIX]) {
    static const uint64_t parts[] = {MIB, 2 * MIB, 3 * MIB, 4 * MIB};
    for (int i = 0; i < N_MATRIX - 1; i++)
        matrices[i] = parts[i % 4];
    matrices[N_MATRIX - 1] = 20 * MIB;
    for (int b = 0; b < N_BLOCK; b++)
        q->blocks[b].first_matrix = 4 * NUM_MAX(b - 1, 0);
    q->matrices = matrices;
    q->n_matrix = N_MATRIX;
}

/* Bytes that cross the link for a prompt; checks the sums of a split. */
static uint64_t check_sums(const homes_question *q, const homes_split *s) {
    uint64_t all = 0, slot = 0, here = q->fixed;
    for (int b = 1; b < N_BLOCK; b++) {
        uint64_t away = 0;
        const int end = b + 1 < N_BLOCK ? q->blocks[b + 1].first_matrix : N_MATRIX;
        for (int i = q->blocks[b].first_matrix; i < end; i++)
            away += s->comes[i] ? q->matrices[i] : 0;
        assert_true(away == s->of[b].away && (away == 0) == (s->of[b].kind == HOME_RESIDENT));
        all += away;
        slot = NUM_MAX(slot, away);
        here += away < q->blocks[b].bytes ? homes_block_bytes(q->blocks[b].bytes - away) : 0;
    }
    assert_true(s->resident == here && s->weights == here + HOMES_SLOTS * slot);
    assert_true(s->weights + s->others <= q->capacity);
    return all;
}

/* The same share of every layer is resident where that makes the link's bytes fewer: if no layer is computed
 * in place. With --gpu-layers whole layers are. */
static void a_share_of_every_layer(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + MIB + 4 * 12 * MIB + 22 * MIB };
    const plan_rates r = usual();
    int n_part = 0;
    for (uint64_t less = MIB; less < 27 * MIB; less += 2 * MIB) {
        homes_block blocks[N_BLOCK];
        uint64_t matrices[N_MATRIX];
        homes_question q = question(blocks, ALL - less);
        homes_split s, whole;
        nib_error err = {0};
        cut(&q, matrices);
        q.one_cache = true;
        q.max_layers = N_BLOCK;
        assert_int_equal(homes_split_make(&q, &r, &whole, &err), NIB_OK);
        const uint64_t most = check_sums(&q, &whole);
        assert_int_equal(whole.n_in_part, 0);
        q.max_layers = 0;
        assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
        const uint64_t bytes = check_sums(&q, &s);
        assert_true(s.n_in_part > 0 ? bytes < most : bytes == most);
        n_part += s.n_in_part > 0;
        homes_split_clear(&whole);
        homes_split_clear(&s);
        q.one_cache = false; /* processor and link together are faster here */
        assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
        assert_true(s.n_in_place == 0 || s.n_in_part == 0);
        homes_split_clear(&s);
    }
    assert_true(n_part > 3);
}

/* Of layers of experts all else is resident, and as many experts as fit. */
static void experts_apart(void **state) {
    (void)state;
    enum { EXPERTS = 7 * MIB, N_EXPERT = 16, EACH = EXPERTS / N_EXPERT, N_LAYER = N_BLOCK - 2 };
    plan_rates r = usual();
    r.at[PLACE_RAM].to[PLACE_GPU] = 1e9;
    int n_apart = 0, n_different = 0, before = -1;
    for (uint64_t capacity = 50 * MIB; capacity < 90 * MIB; capacity += MIB) {
        homes_block blocks[N_BLOCK];
        uint64_t matrices[N_MATRIX];
        bool stack[N_MATRIX];
        homes_question q = question(blocks, capacity);
        homes_split s;
        nib_error err = {0};
        cut(&q, matrices);
        q.layer.bytes = 10 * MIB;
        q.layer.chosen = EXPERTS;
        q.layer.share = 0.125;
        q.one_cache = true; /* no layer is computed in place */
        q.stack = stack;
        for (int i = 0; i < N_MATRIX; i++)
            stack[i] = i < N_MATRIX - 1 && i % 4 >= 2;
        for (int b = 1; b < N_BLOCK - 1; b++) {
            blocks[b].apart = true;
            blocks[b].n_expert = N_EXPERT;
            blocks[b].expert = EACH;
            blocks[b].kept_more = 4096;
        }
        if (homes_split_make(&q, &r, &s, &err))
            fail_msg("%s", err.message);
        assert_true(s.weights + s.others <= capacity);
        n_apart += s.n_apart > 0;
        for (int b = 1; b < N_BLOCK - 1 && s.n_apart > 0; b++) {
            assert_true(s.of[b].apart && s.of[b].kind == HOME_STREAMED);
            assert_true(s.of[b].away == EXPERTS - (uint64_t)s.n_kept * EACH);
        }
        if (s.n_apart > 0) {
            assert_true(s.n_apart == N_LAYER && s.slot == EXPERTS && s.n_kept >= before);
            assert_true(s.weights + s.others + N_LAYER * (EACH + 3 * MIB) > capacity ||
                        s.n_kept == N_EXPERT - 1);
            n_different += s.n_kept != before;
            before = s.n_kept;
        }
        homes_split_clear(&s);
        q.n_cpu_experts = 2;
        const nib_status status = homes_split_make(&q, &r, &s, &err);
        assert_true(status == NIB_OK ? s.n_apart == 2 && s.n_kept == 0 && s.of[1].apart && s.of[2].apart
                                     : status == NIB_E_NOFIT && strstr(err.message, "is the smallest"));
        homes_split_clear(&s);
        q.max_layers = 2;
        assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_E_USAGE);
        homes_split_clear(&s);
    }
    assert_true(n_apart > 5 && n_different > 2);
}

/* The GPU computes while the link brings weights, and waits for the processor: where its time is what lasts,
 * no layer is computed by a slower one. */
static void the_gpu_takes_time(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + MIB + 4 * 12 * MIB + 22 * MIB };
    plan_rates r = usual();
    homes_division fast, slow;
    homes_divide(&r, &(homes_layers){layer, 7, 8, layer.bytes}, 64, &fast);
    r.at[PLACE_GPU].read = 500e9; /* 9 layers of 0.2 ms, and as long for each of the streamed ones */
    homes_divide(&r, &(homes_layers){layer, 7, 8, layer.bytes}, 64, &slow);
    assert_int_equal(fast.n_streamed, 2);
    assert_int_equal(slow.n_streamed, 3);
    assert_true(fabs(slow.seconds - 6.4e-3) < 1e-6); /* (9 + 3) 0.2 + 4 */
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        homes_block blocks[N_BLOCK];
        uint64_t matrices[N_MATRIX];
        homes_question q = question(blocks, ALL - 20 * MIB);
        homes_split s;
        nib_error err = {0};
        cut(&q, matrices);
        q.layer.bytes = 10 * MIB;
        r.one_row[4] = 20e9;
        r.at[PLACE_GPU].read = is_slow ? 100e9 : INFINITY;
        assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
        assert_true((s.n_in_place > 0) == !is_slow);
        homes_split_clear(&s);
    }
}

static int n_in_place(const homes_question *q, int64_t *max_rows) {
    const plan_rates r = usual();
    homes_split s;
    nib_error err = {0};
    if (homes_split_make(q, &r, &s, &err))
        fail_msg("%s", err.message);
    const int n = s.n_in_place;
    assert_true(s.n_not_resident > 0);
    *max_rows = s.max_rows;
    homes_split_clear(&s);
    return n;
}

static void many_sequences_leave_no_layer_in_place(void **state) {
    (void)state;
    homes_block blocks[N_BLOCK];
    homes_question q = question(blocks, 60 * MIB);
    int64_t max, again;
    const int n = n_in_place(&q, &max);
    assert_true(n > 0 && max > 1 && max < 64);
    q.n_sequence = (int)max;
    assert_int_equal(n_in_place(&q, &again), n);
    assert_true(again == max);
    q.n_sequence++;
    assert_int_equal(n_in_place(&q, &again), 0);
}

/* The keys and values of a question's four layers take 40 MiB each: as many layers as needed are staged, and
 * those that cross the link least are chosen: weights and caches of equal bytes are never both moved. */
static void caches_that_do_not_fit_are_staged(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + 4 * 12 * MIB + 22 * MIB, EACH = 40 * MIB, PAGE = 65536 };
    static const struct {
        uint64_t capacity; /* beside weights and activations */
        int n_sequence, n_staged, n_not_resident;
    } cases[] = {
        {4 * EACH, 1, 0, 0},
        {4 * EACH, 64, 0, 0},
        {4 * EACH - 4 * MIB, 1, 0, 2},
        {3 * EACH + 8 * MIB, 64, 1, 0},
        {2 * EACH + 8 * MIB, 64, 2, 0},
        {8 * MIB, 64, 4, 0},
        {8 * MIB, 1, 4, 0},
    };
    const plan_rates r = usual();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        homes_block blocks[N_BLOCK];
        homes_question q = question(blocks, ALL + cases[i].capacity);
        homes_split s;
        nib_error err = {0};
        q.n_page = EACH / PAGE;
        q.n_page_each = 16;
        q.n_sequence = cases[i].n_sequence;
        q.many_from = 16;
        q.one_cache = true;
        q.stages = true;
        if (homes_split_make(&q, &r, &s, &err))
            fail_msg("case %zu: %s", i, err.message);
        assert_true(s.weights + s.others <= q.capacity);
        int n = 0;
        for (int b = 0; b < N_BLOCK; b++)
            n += s.of[b].staged;
        if (n != cases[i].n_staged || s.n_staged != n || s.n_not_resident != cases[i].n_not_resident)
            fail_msg("case %zu: %d staged, %d not resident", i, n, s.n_not_resident);
        assert_int_equal(s.host, n * EACH);
        assert_true(n == 0 || (s.n_stage_page >= 16 && s.stage_page == PAGE));
        homes_split_clear(&s);
    }
}

/* Two of the layers have windows, and parts for few pages. In host memory they have whole pages. */
static void parts_for_windows_are_counted(void **state) {
    (void)state;
    enum { ALL = ALWAYS + BESIDE + 4 * 12 * MIB + 22 * MIB, PAGE = 65536, N_PAGE = 640, N_PART = 8 };
    const plan_rates r = usual();
    for (int staged = 0; staged < 2; staged++) {
        homes_block blocks[N_BLOCK];
        const uint64_t all = (N_PAGE + N_PART) * 2 * (uint64_t)PAGE;
        homes_question q = question(blocks, ALL + (staged ? 10 * (uint64_t)MIB : all));
        homes_split s;
        nib_error err = {0};
        blocks[1].slides = blocks[3].slides = true;
        q.n_page = N_PAGE, q.page = 2 * PAGE;
        q.n_part = N_PART, q.part = 2 * PAGE;
        q.n_page_each = 16;
        q.n_sequence = q.many_from = 16;
        q.one_cache = q.stages = true;
        if (homes_split_make(&q, &r, &s, &err))
            fail_msg("%s", err.message);
        uint64_t here = all;
        for (int b = 1; b < N_BLOCK; b++)
            here -= s.of[b].staged ? (uint64_t)PAGE * (blocks[b].slides ? N_PART : N_PAGE) : 0;
        assert_true(s.weights + s.others <= q.capacity);
        assert_true((s.n_staged > 0) == (staged > 0));
        assert_true(s.device_kv >= here && s.device_kv <= here + (N_PAGE + N_PART) * (uint64_t)HOMES_PAGE);
        assert_int_equal(s.host, (uint64_t)s.n_staged * N_PAGE * PAGE);
        homes_split_clear(&s);
    }
}

/* A plan has so many bytes of a streamed block in VRAM as a split had: the same matrices stay. */
static void a_share_is_followed(void **state) {
    (void)state;
    const plan_rates r = usual();
    homes_block blocks[N_BLOCK];
    uint64_t matrices[N_MATRIX];
    homes_question q = question(blocks, 60 * MIB);
    homes_split s, again;
    nib_error err = {0};
    cut(&q, matrices);
    q.one_cache = true;
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
    assert_true(s.n_in_part > 0);
    q.given = s.of;
    assert_int_equal(homes_split_make(&q, &r, &again, &err), NIB_OK);
    assert_memory_equal(s.comes, again.comes, N_MATRIX);
    assert_true(check_sums(&q, &again) == check_sums(&q, &s));
    homes_split_clear(&again);
    homes_split_clear(&s);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    const plan_rates r = usual();
    homes_block blocks[N_BLOCK];
    homes_question q = question(blocks, 20 * MIB);
    homes_split s;
    nib_error err = {0};
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_E_NOFIT);
    assert_non_null(strstr(err.message, "is the smallest that works"));
    q.capacity = s.weights + s.others; /* the named cap, without the driver */
    homes_split_clear(&s);
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
    homes_split_clear(&s);
}

static void a_plan_is_followed(void **state) {
    (void)state;
    block_home given[N_BLOCK] = {[1] = {.kind = HOME_STREAMED}, [4] = {.kind = HOME_IN_PLACE}};
    const plan_rates r = usual();
    homes_block blocks[N_BLOCK];
    homes_question q = question(blocks, 200 * MIB);
    homes_split s;
    nib_error err = {0};
    q.given = given;
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
    for (int b = 0; b < N_BLOCK; b++)
        assert_int_equal(s.of[b].kind, given[b].kind);
    assert_int_equal(s.n_in_place, 1);
    assert_true(s.max_rows >= 1 && s.host == 4 * 65536);
    homes_split_clear(&s);
    q.one_cache = true;
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_E_USAGE);
    homes_split_clear(&s);
    q.one_cache = false;
    q.max_layers = 1;
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_E_USAGE);
    homes_split_clear(&s);
    q.max_layers = 0;
    q.capacity = 40 * MIB;
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_E_NOFIT);
    homes_split_clear(&s);
}

/* Of layers whose keys and values are in RAM, the processor attends if it is faster than the link; a plan
 * that is followed says in how many. */
static void processor_attends(void **state) {
    (void)state;
    enum { N = 12 };
    plan_rates r = usual();
    homes_block blocks[N] = {{.bytes = 0}};
    block_home given[N] = {{.kind = HOME_RESIDENT}};
    for (int b = 1; b < N; b++)
        blocks[b] = (homes_block){.bytes = 10 * MIB, .cache = b < N - 1 ? 4 * MIB : 0};
    homes_question q = {.blocks = blocks,
                        .n_block = N,
                        .layer = layer,
                        .capacity = (uint64_t)600 * MIB,
                        .n_page = 100,
                        .page = (uint64_t)40 * MIB,
                        .n_page_each = 10,
                        .n_sequence = 10,
                        .stages = true,
                        .one_cache = true};
    homes_split s;
    nib_error err;
    const struct {
        double ram, attend;
        bool codes;
        int least, most;
    } cases[] = {
        {1e12, 0, false, 8, 10}, {1e12, 100e9, true, 8, 10}, {1e12, 25e9, true, 0, 0}, {60e9, 1, true, 0, 0}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        r.at[PLACE_RAM].read = cases[i].ram;
        r.attend[PLAN_KV_HALVES] = cases[i].ram;
        r.attend[PLAN_KV_CODES_4] = cases[i].attend;
        q.kv = cases[i].codes ? PLAN_KV_CODES_4 : PLAN_KV_HALVES;
        for (int b = 1; b < N - 1; b++)
            blocks[b].newest = cases[i].codes ? 4096 : 0;
        q.newest = cases[i].codes ? 10 * 4096 : 0;
        q.attends = true;
        if (homes_split_make(&q, &r, &s, &err))
            fail_msg("%s", err.message);
        assert_true(s.n_staged >= 9);
        assert_in_range(s.n_attended, cases[i].least, cases[i].most);
        for (int b = 0; b < N; b++)
            assert_true(s.of[b].staged || !s.of[b].attended);
        homes_split_clear(&s);
    }
    q.given = given;
    q.n_attended = 7;
    if (homes_split_make(&q, &r, &s, &err))
        fail_msg("%s", err.message);
    assert_int_equal(s.n_attended, 7);
    homes_split_clear(&s);
    q.given = NULL;
    q.attends = false;
    assert_int_equal(homes_split_make(&q, &r, &s, &err), NIB_OK);
    assert_int_equal(s.n_attended, 0);
    homes_split_clear(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_work),
        cmocka_unit_test(experts_stay),
        cmocka_unit_test(where_layers_stand),
        cmocka_unit_test(one_of_them),
        cmocka_unit_test(more_activation_bits_take_longer),
        cmocka_unit_test(as_much_as_fits_is_resident),
        cmocka_unit_test(a_sketch_beside_them),
        cmocka_unit_test(tables_come_last),
        cmocka_unit_test(many_sequences_leave_no_layer_in_place),
        cmocka_unit_test(caches_that_do_not_fit_are_staged),
        cmocka_unit_test(parts_for_windows_are_counted),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_plan_is_followed),
        cmocka_unit_test(processor_attends),
        cmocka_unit_test(a_share_of_every_layer),
        cmocka_unit_test(experts_apart),
        cmocka_unit_test(a_share_is_followed),
        cmocka_unit_test(the_gpu_takes_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
