/* Pages of keys and values: sequences that share prefixes, grow, are truncated and closed in any order,
 * compared with a plain copy of the writes of each, in host memory and on a device with a tier in RAM, whose
 * copies are late and fail. Reserved pages are enough, shared pages take memory once, and unreferenced pages
 * are found again until they are needed. */
#include "base/mem.h"
#include "base/num.h"
#include "support/lazy_device.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tinylayout.h"
#include "support/tinymodel.h"
#include "kernels/kv_layout.h"
#include "state/kv_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { N_CTX = 300, N_SEQUENCE = 6, N_STEP = 1200, KIB = 1 << 10 };

static const tiny_shape shape = {TYPE_Q8_0, 2, 64, 96, 4, 2, 40, N_CTX, true};

/* The formats of two layers. */
static const uint8_t two_types[] = {TYPE_F16, TYPE_KV4};
static const kv_formats mixed = {.type = TYPE_KV4, .layers = two_types, .n_layer = 2};

typedef struct sequence {
    kv_table kv;
    int32_t tokens[N_CTX];
    int64_t n;
    bool open;
} sequence;

typedef struct setting {
    tiny_layout of;
    ledger *l;
    device *d;
    kv_pool *pages;
    kv_amount reserved; /* for tables that do not reserve their own */
} setting;

static setting setting_of(const char *path, device *d, kv_formats formats, uint64_t ram) {
    const uint64_t caps[NIB_N_TIER] = {
        [NIB_TIER_RAM] = ram, [NIB_TIER_VRAM] = NIB_AUTO, [NIB_TIER_DISK] = NIB_AUTO};
    setting s = {.d = d};
    nib_error err = {0};
    s.of = tiny_layout_open(path);
    if (ledger_open(places_of(caps), &s.l, &err) ||
        kv_pool_open(s.of.l, formats, false, true, d, s.l, &s.pages, &err))
        fail_msg("%s", err.message);
    return s;
}

static setting setting_on(device *d, type_id type, uint64_t ram) {
    return setting_of(tiny_model("kv.gguf", &shape), d, kv_formats_all(type), ram);
}

static setting setting_open(type_id type, uint64_t ram) {
    return setting_on(device_host(), type, ram);
}

static void setting_close(setting *s) {
    kv_pool_close(s->pages);
    nib_memory now;
    ledger_report(s->l, &now);
    assert_int_equal(now.owner[NIB_OWNER_KV], 0);
    ledger_close(s->l);
    tiny_layout_close(&s->of);
}

static void open_table(const setting *s, kv_table *t, int64_t n_ctx) {
    nib_error err = {0};
    if (kv_table_open(t, s->pages, s->of.l, s->d, s->l, n_ctx, NULL, &err))
        fail_msg("%s", err.message);
}

/* One value stands for all of a position: it depends on the token and on everything before it. */
static float value_of(const int32_t *tokens, int64_t position) {
    uint32_t h = 17;
    for (int64_t i = 0; i <= position; i++)
        h = h * 31 + (uint32_t)tokens[i];
    return (float)(h % 2048);
}

/* A layer's view of the table with addresses that the test can use. */
static kv_view view_of(const sequence *s, int layer) {
    static uint8_t *pages[N_CTX / KV_BLOCK + 1];
    kv_view v = s->kv.layers[layer];
    for (int64_t i = 0; i < s->kv.n_page; i++) {
        uint8_t *there = lazy_device_at(v.pages[i]);
        pages[i] = there ? there : v.pages[i];
    }
    v.pages = pages;
    return v;
}

static void write_positions(sequence *s, int64_t first, int64_t end) {
    const kernel_table *k = kernels_table_for("ref");
    float row[64];
    nib_status status;
    while ((status = kv_table_reach(&s->kv, first, end, end, false, NULL)) == NIB_E_DEVICE)
        continue; /* a copy that fails on purpose */
    assert_int_equal(status, NIB_OK);
    lazy_device_run();
    for (int layer = 0; layer < 2; layer++) {
        const kv_view v = view_of(s, layer);
        for (int64_t p = first; p < end; p++) {
            const float value = value_of(s->tokens, p);
            for (int i = 0; i < 64; i++)
                row[i] = value;
            k->kv_store(&v, false, p, row);
            k->kv_store(&v, true, p, row);
        }
    }
    kv_table_learn(&s->kv, s->tokens, first, end);
    s->n = end;
}

/* Attention over one position alone, by a window of one: its value comes out as it was stored. */
static void check_positions(const sequence *s) {
    const kernel_table *k = kernels_table_for("ref");
    static float q[64], out[64];
    void *scratch = aligned_alloc(64, (attend_scratch_bytes(16, true) + 63) / 64 * 64);
    for (int64_t p = 0; p < s->n; p++) {
        const attend_args a = {.kv = view_of(s, p / 3 % 2),
                               .q = q,
                               .out = out,
                               .n_row = 1,
                               .first_position = p,
                               .n_head = 4,
                               .window = 1,
                               .scale = 1,
                               .scratch = scratch};
        k->attend(&a, 0, 4, 0, 1);
        if (out[0] != value_of(s->tokens, p))
            fail_msg("position %d of %d holds %g", (int)p, (int)s->n, (double)out[0]);
    }
    free(scratch);
}

static uint32_t draw(uint32_t *seed, uint32_t n) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) % n;
}

/* Draws a text from position `first` on. There are few texts, so prefixes are often equal. */
static void draw_tokens(sequence *s, int64_t first, int64_t end, uint32_t *seed) {
    const uint32_t text = draw(seed, 3);
    for (int64_t i = first; i < end; i++)
        s->tokens[i] = (int32_t)((uint32_t)(i / 40) * text % 7 + (draw(seed, 60) == 0));
}

static void any_step(const setting *set, sequence *s, uint32_t *seed) {
    if (!s->open) {
        open_table(set, &s->kv, N_CTX);
        s->open = true;
        s->n = 0;
    }
    switch (draw(seed, 8)) {
    case 0:
        kv_table_close(&s->kv);
        s->open = false;
        return;
    case 1: /* another text from somewhere on */
        s->n = kv_table_keep(&s->kv, draw(seed, (uint32_t)s->n + 1));
        break;
    default: break;
    }
    const int64_t max = s->n + 1 + draw(seed, 90), end = NUM_MIN(N_CTX, max);
    if (s->n == end)
        return;
    draw_tokens(s, s->n, end, seed);
    s->n = kv_table_adopt(&s->kv, s->tokens, s->n, end - 1);
    write_positions(s, s->n, end);
}

/* Copies between the device and RAM that still wait are made before positions are looked at. */
static void check_all(const setting *set, const sequence *all) {
    while (kv_pool_copy_waiting(set->pages, NULL) == NIB_E_DEVICE)
        continue;
    lazy_device_run();
    for (int j = 0; j < N_SEQUENCE; j++)
        if (all[j].open)
            check_positions(&all[j]);
}

static kv_usage any_steps(const setting *set, int n_step, uint32_t seed) {
    static sequence all[N_SEQUENCE];
    kv_usage u;
    memset(all, 0, sizeof all);
    for (int i = 0; i < n_step; i++) {
        sequence *s = &all[draw(&seed, N_SEQUENCE)];
        any_step(set, s, &seed);
        if (i % 32 == 0)
            check_all(set, all);
        kv_pool_usage(set->pages, &u);
        assert_true(u.used <= u.reserved);
    }
    for (int j = 0; j < N_SEQUENCE; j++)
        kv_table_close(&all[j].kv);
    return u;
}

static void any_order(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F16, TYPE_F32};
    for (size_t t = 0; t < NUM_COUNT(types); t++) {
        setting set = setting_open(types[t], NIB_AUTO);
        any_steps(&set, N_STEP, 5);
        setting_close(&set);
    }
}

/* ---- a device that the host cannot read, with a tier of pages in RAM ---- */

static void any_order_with_ram(void **state) {
    (void)state;
    enum { N_TURN = 12, N_PAGE = 12 };
    static const kv_home homes[] = {KV_HOME_DEVICE, KV_HOME_HOST};
    uint64_t n_restored = 0;
    for (uint32_t turn = 0; turn < N_TURN; turn++) {
        setting set = setting_on(lazy_device(), turn % 2 ? TYPE_F16 : TYPE_F32, NIB_AUTO);
        kv_amount more;
        if (turn / 2 % 2)
            assert_int_equal(kv_pool_split(set.pages, set.of.l, device_host(), homes, NULL), NIB_OK);
        const kv_paging *p = kv_pool_paging(set.pages);
        const uint64_t max = (1 + turn / 4 * N_PAGE) * (p->page_bytes + p->host_bytes);
        assert_int_equal(kv_pool_keep(set.pages, max, &more, NULL), NIB_OK);
        assert_int_equal(more.page, 0);
        lazy_device_fail(turn % 3 == 2 ? 8 : 0);
        const kv_usage u = any_steps(&set, N_STEP / 4, turn);
        lazy_device_fail(0);
        assert_true(u.ram_bytes > 0 && u.ram_bytes <= max);
        assert_true(u.n_saved > 50);
        n_restored += u.n_restored;
        setting_close(&set);
    }
    assert_true(n_restored > 40);
}

static void open_with(const setting *set, sequence *s, int64_t n, int32_t token) {
    open_table(set, &s->kv, N_CTX);
    for (int64_t i = 0; i < n; i++)
        s->tokens[i] = i < 200 ? (int32_t)i : token;
    s->n = kv_table_adopt(&s->kv, s->tokens, 0, n);
}

static void check_prefix(type_id type) {
    setting set = setting_open(type, NIB_AUTO);
    static sequence all[N_SEQUENCE];
    kv_usage u;
    for (int i = 0; i < N_SEQUENCE; i++) {
        open_with(&set, &all[i], 200, 0);
        assert_int_equal(all[i].n, i ? 200 : 0);
        write_positions(&all[i], all[i].n, i ? all[i].n : 200);
    }
    kv_pool_usage(set.pages, &u);
    assert_int_equal(u.used, 4); /* 200 positions, the last page half full and shared as well */
    for (int i = 0; i < N_SEQUENCE; i++) {
        all[i].tokens[200] = 100 + i;
        write_positions(&all[i], 200, 201);
    }
    kv_pool_usage(set.pages, &u);
    assert_int_equal(u.used, 3 + N_SEQUENCE); /* copied when it was written */
    for (int i = 0; i < N_SEQUENCE; i++)
        check_positions(&all[i]);
    for (int i = 0; i < N_SEQUENCE; i++)
        kv_table_close(&all[i].kv);
    setting_close(&set);
}

static void a_prefix_takes_memory_once(void **state) {
    (void)state;
    check_prefix(TYPE_F16);
    check_prefix(TYPE_F32);
}

/* As write_positions, without the keys and values. */
static void reach_positions(sequence *s, int64_t first, int64_t end) {
    assert_int_equal(kv_table_reach(&s->kv, first, end, end, false, NULL), NIB_OK);
    kv_table_learn(&s->kv, s->tokens, first, end);
    s->n = end;
}

/* kv8 and kv4 share whole pages only: positions that are not in codes yet belong to the sequence. One that
 * goes another way from within a shared page on has its own page there, and the others keep theirs. */
static void codes_are_shared_whole(void **state) {
    (void)state;
    const kv_formats formats[] = {kv_formats_all(TYPE_KV8), kv_formats_all(TYPE_KV4), mixed};
    for (size_t k = 0; k < NUM_COUNT(formats); k++) {
        setting set = setting_of(tiny_model("kv.gguf", &shape), device_host(), formats[k], NIB_AUTO);
        const int begun = k == 2; /* layers in f16 have a page for the last positions */
        static sequence a, b, c;
        kv_usage u;
        open_with(&set, &a, 200, 0);
        reach_positions(&a, 0, 200);
        open_with(&set, &b, 200, 0);
        assert_int_equal(b.n, 192);
        kv_pool_usage(set.pages, &u);
        assert_int_equal(u.used, 3 + begun);
        assert_int_equal(kv_table_keep(&b.kv, 70), KV_BLOCK);
        for (int i = KV_BLOCK; i < 200; i++)
            b.tokens[i] = 7;
        reach_positions(&b, KV_BLOCK, 200);
        kv_pool_usage(set.pages, &u);
        assert_int_equal(u.used, 5 + 2 * begun);
        for (int i = 0; i < 3; i++)
            assert_true((a.kv.pages[i] == b.kv.pages[i]) == (i == 0));
        open_with(&set, &c, 200, 0);
        assert_int_equal(c.n, 192);
        kv_table_close(&c.kv);
        open_with(&set, &c, 150, 0); /* ends within the third page */
        assert_int_equal(c.n, 128);
        c.tokens[127] = -1; /* differs from within the second one on */
        kv_table_keep(&c.kv, 0);
        assert_int_equal(kv_table_adopt(&c.kv, c.tokens, 0, 150), KV_BLOCK);
        kv_table_close(&a.kv);
        kv_table_close(&b.kv);
        kv_table_close(&c.kv);
        setting_close(&set);
    }
}

static void found_again_until_needed(void **state) {
    (void)state;
    setting set = setting_open(TYPE_F16, NIB_AUTO);
    static sequence a, b, c;
    kv_usage u;
    open_table(&set, &c.kv, N_CTX); /* keeps the pool from giving its memory back */
    open_with(&set, &a, 200, 0);
    write_positions(&a, 0, 200);
    kv_table_close(&a.kv);
    kv_pool_usage(set.pages, &u);
    assert_int_equal(u.cached + u.used, 0); /* its own reservation went, and its pages with it */
    open_with(&set, &a, 200, 0);
    write_positions(&a, 0, 200);
    kv_table_keep(&a.kv, 0);
    kv_pool_usage(set.pages, &u);
    assert_int_equal(u.cached, 4);
    open_with(&set, &b, 200, 0);
    assert_int_equal(b.n, 200);
    kv_table_close(&b.kv);
    kv_table_close(&a.kv);
    kv_table_close(&c.kv);
    setting_close(&set);
}

/* ---- which content goes first ---- */

enum { PER = 3, N_TEXT = 3 }; /* pages of a sequence, sequences that end */

static void text_tokens(int text, int32_t tokens[PER * KV_BLOCK]) {
    for (int i = 0; i < PER * KV_BLOCK; i++)
        tokens[i] = 1000 * text + i;
}

/* Opens a sequence in pages that are reserved already; returns how many positions were there. */
static int64_t open_text(const setting *set, sequence *s, int text) {
    if (kv_table_open(&s->kv, set->pages, set->of.l, set->d, set->l, N_CTX, &set->reserved, NULL))
        fail_msg("a sequence cannot be opened");
    text_tokens(text, s->tokens);
    s->n = kv_table_adopt(&s->kv, s->tokens, 0, PER * KV_BLOCK);
    return s->n;
}

/* Whether the pool has this page of a text. Does not use it. */
static bool is_there(const setting *set, int text, int page) {
    int32_t tokens[PER * KV_BLOCK];
    uint64_t mark = 0;
    char byte;
    text_tokens(text, tokens);
    return kv_pool_copy(set->pages, tokens, page * KV_BLOCK, (page + 1) * KV_BLOCK, 0, &byte, 1, &mark);
}

/* Takes all pages, one by one, and checks what is left after each. */
static void check_order(const setting *set, const sequence *living, const int order[N_TEXT]) {
    kv_page *taken[PER * N_TEXT];
    kv_usage u;
    for (int n = 0; n < PER * N_TEXT; n++) {
        taken[n] = kv_pool_take(set->pages);
        for (int i = 0; i < PER; i++) {
            assert_ptr_not_equal(taken[n], living->kv.pages[i]);
            assert_true(is_there(set, N_TEXT, i));
        }
        for (int i = 0; i < PER * N_TEXT; i++)
            assert_int_equal(is_there(set, order[i / PER], PER - 1 - i % PER), i > n);
    }
    kv_pool_usage(set->pages, &u);
    assert_int_equal(u.cached, 0);
    assert_int_equal(u.used, u.reserved);
    for (int n = 0; n < PER * N_TEXT; n++)
        kv_pool_drop(set->pages, taken[n]);
}

/* The content that was used least recently is dropped first, and within a sequence its last pages. Pages of
 * open sequences are never dropped. */
static void least_recently_used_goes_first(void **state) {
    (void)state;
    static const type_id types[] = {TYPE_F16, TYPE_F32, TYPE_KV8, TYPE_KV4};
    static const int order[N_TEXT] = {1, 2, 0};
    static sequence all[N_TEXT + 1]; /* the last one lives */
    for (size_t k = 0; k < NUM_COUNT(types); k++) {
        setting set = setting_open(types[k], NIB_AUTO);
        sequence again;
        set.reserved = (kv_amount){.page = PER * (N_TEXT + 1)};
        assert_int_equal(kv_pool_reserve(set.pages, set.reserved, false, NULL), NIB_OK);
        for (int i = N_TEXT; i >= 0; i--) {
            assert_int_equal(open_text(&set, &all[i], i), 0);
            reach_positions(&all[i], 0, PER * KV_BLOCK);
        }
        for (int i = 0; i < N_TEXT; i++)
            kv_table_close(&all[i].kv);
        assert_int_equal(open_text(&set, &again, 0), PER * KV_BLOCK); /* used once more */
        kv_table_close(&again.kv);
        check_order(&set, &all[N_TEXT], order);
        kv_table_close(&all[N_TEXT].kv);
        kv_pool_unreserve(set.pages, set.reserved);
        setting_close(&set);
    }
}

/* The ledger has what a sequence's positions make resident, shared pages once, and nothing after its end. */
static void charged_as_it_grows(void **state) {
    (void)state;
    const kv_formats formats[] = {kv_formats_all(TYPE_F16), kv_formats_all(TYPE_F32),
                                  kv_formats_all(TYPE_KV8), kv_formats_all(TYPE_KV4), mixed};
    static const tiny_shape wide = {TYPE_Q8_0, 2, 512, 64, 4, 4, 40, N_CTX, true}; /* 16 KiB a head in f16 */
    static const int64_t ends[] = {1, 40, 63, 64, 65, 128, 129, 192, 200, 256};
    for (size_t k = 0; k < NUM_COUNT(formats); k++) {
        setting set = setting_of(tiny_model("wide.gguf", &wide), device_host(), formats[k], NIB_AUTO);
        static sequence a, b;
        nib_memory now;
        uint64_t bytes = 0;
        open_with(&set, &a, 256, 3);
        for (size_t i = 0; i < NUM_COUNT(ends); i++) {
            reach_positions(&a, a.n, ends[i]);
            assert_int_equal(kv_table_touched(set.of.l, formats[k], ends[i], &bytes, NULL), NIB_OK);
            ledger_report(set.l, &now);
            assert_int_equal(now.owner[NIB_OWNER_KV], bytes);
        }
        open_with(&set, &b, 256, 3);
        assert_int_equal(b.n, 256);
        ledger_report(set.l, &now);
        assert_int_equal(now.owner[NIB_OWNER_KV], bytes);
        kv_table_close(&a.kv);
        kv_table_close(&b.kv);
        ledger_report(set.l, &now);
        assert_int_equal(now.owner[NIB_OWNER_KV], 0);
        setting_close(&set);
    }
}

/* Each layer takes a page's bytes in its own format, and only layers with codes have a window. */
static void formats_by_layer(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("kv.gguf", &shape));
    kv_paging p;
    uint8_t types[12];
    char text[64];
    const kv_formats many = {.type = TYPE_KV4, .layers = types, .n_layer = 12};
    assert_int_equal(kv_paging_open(&p, of.l, mixed, false, NULL), NIB_OK);
    assert_int_equal(p.layers[0].value_at - p.layers[0].key_at, 2 * KV_BLOCK * 16 * 2);
    assert_int_equal(p.layers[1].value_at - p.layers[1].key_at, 2 * kv_block_bytes(TYPE_KV4, 16));
    kv_paging_close(&p);
    assert_int_equal(kv_paging_open(&p, of.l, kv_formats_newest(mixed), false, NULL), NIB_OK);
    assert_int_equal(p.layers[0].n_kv_head, 0);
    assert_int_equal(p.layers[1].n_kv_head, 2);
    kv_paging_close(&p);
    tiny_layout_close(&of);
    assert_int_equal(kv_table_pages(mixed, 65), 2);
    assert_int_equal(kv_table_pages(kv_formats_all(TYPE_KV4), 65), 1);
    memset(types, TYPE_KV4, sizeof types);
    assert_int_equal(kv_formats_parse("0-2=f16,11=KV8", types, 12, NULL), NIB_OK);
    assert_true(kv_formats_print(many, text, sizeof text));
    assert_string_equal(text, "0-2=f16,3-10=kv4,11=kv8");
    assert_false(kv_formats_print(many, text, 16));
    static const char *const wrong[] = {"12=f16", "2-1=f16", "f16",        "0=q4_0",
                                        "0-=f16", "-1=f16",  "0=f16;1=f16"};
    for (size_t i = 0; i < NUM_COUNT(wrong); i++)
        assert_int_equal(kv_formats_parse(wrong[i], types, 12, NULL), NIB_E_USAGE);
}

/* A reservation that does not fit is refused, and nothing of it remains. */
static void refused_when_reserved(void **state) {
    (void)state;
    const uint64_t headroom =
        (SANITIZED ? 8192 : 256) * (uint64_t)KIB; /* a sanitizer's own memory grows meanwhile */
    setting set = setting_open(TYPE_F16, process_bytes() + LEDGER_RUNTIME_MARGIN + headroom);
    kv_table t;
    nib_error err = {0};
    kv_usage u;
    assert_int_equal(kv_table_open(&t, set.pages, set.of.l, device_host(), set.l, 1 << 22, NULL, &err),
                     NIB_E_NOFIT);
    assert_int_equal(kv_table_open(&t, set.pages, set.of.l, device_host(), set.l, INT64_MAX / 2, NULL, &err),
                     NIB_E_NOFIT);
    kv_pool_usage(set.pages, &u);
    assert_int_equal(u.reserved, 0);
    open_table(&set, &t, KV_BLOCK);
    kv_table_close(&t);
    setting_close(&set);
}

/* Resident bytes of n_byte from `at` on, as the system counts them. */
static uint64_t resident_of(void *at, uint64_t n_byte) {
    const uint64_t page = 4096, n = num_div_up((int64_t)n_byte, (int64_t)page);
    unsigned char *seen = malloc(n);
    uint64_t sum = 0;
    assert_non_null(seen);
    assert_int_equal(mincore(at, n_byte, seen), 0);
    for (uint64_t i = 0; i < n; i++)
        sum += (seen[i] & 1) * page;
    free(seen);
    return sum;
}

/* Huge pages become resident as a whole: the ledger counts no byte less than the system, and all of them in
 * the end. */
static void huge_pages_are_counted(void **state) {
    (void)state;
    setting set = setting_open(TYPE_F16, NIB_AUTO);
    const uint64_t each = kv_pool_paging(set.pages)->page_bytes, n = 24 * (uint64_t)MEM_HUGE_PAGE / each + 3;
    kv_page **pages = malloc(n * sizeof *pages);
    nib_memory now;
    assert_non_null(pages);
    assert_int_equal(kv_pool_reserve(set.pages, (kv_amount){.page = (int64_t)n}, true, NULL), NIB_OK);
    for (uint64_t i = 0; i < n; i++)
        pages[i] = kv_pool_take(set.pages);
    for (uint64_t i = 0; i < n; i++) { /* no page after its neighbour */
        kv_page *page = pages[i * 7 % n];
        kv_pool_touch(set.pages, page, 1);
        kv_page_at(page)[0] = 1;
        ledger_report(set.l, &now);
        if (i % 64 == 0)
            assert_true(now.owner[NIB_OWNER_KV] >= resident_of(kv_page_at(pages[0]), n * each));
    }
    assert_int_equal(now.owner[NIB_OWNER_KV], n * each);
    for (uint64_t i = 0; i < n; i++)
        kv_pool_drop(set.pages, pages[i]);
    kv_pool_unreserve(set.pages, (kv_amount){.page = (int64_t)n});
    free(pages);
    setting_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order),
        cmocka_unit_test(any_order_with_ram),
        cmocka_unit_test(a_prefix_takes_memory_once),
        cmocka_unit_test(codes_are_shared_whole),
        cmocka_unit_test(found_again_until_needed),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(charged_as_it_grows),
        cmocka_unit_test(formats_by_layer),
        cmocka_unit_test(refused_when_reserved),
        cmocka_unit_test(huge_pages_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
