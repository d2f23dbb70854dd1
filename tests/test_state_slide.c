/* Layers with a window keep only the parts of pages that are still read: passes of any number of rows, of
 * several tables at a time, that share prefixes, go back, fail and are closed in any order. While a pass is
 * computed as the processor does, every row finds the positions that it reads, also when another layer reads
 * them after all rows are stored. Parts never run out, and a long sequence takes no more of them than a short
 * one. */
#include "base/num.h"
#include "kernels/kv_layout.h"
#include "state/kv_slide.h"
#include "support/slow.h"
#include "support/tinyfolder.h"
#include "support/tinylayout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    N_CTX = 1000,
    N_TABLE = 5,
    N_STEP = 60,
    WINDOW = 100,
    N_LAYER = 2 /* of six; the first has the window */,
    N_KV_HEAD = 4,
    D_HEAD = 32
};
enum { QUOTA = 5 }; /* parts for the window and 128 rows */

typedef struct sequence {
    kv_table kv;
    int32_t tokens[N_CTX];
    float values[N_CTX]; /* one value stands for all of a position; it depends on all tokens up to it */
    int64_t n, end;      /* computed; of the pass */
    bool open;
} sequence;

typedef struct setting {
    tiny_layout of;
    ledger *l;
    kv_pool *pages;
    kv_amount reserved, more;
    int64_t window, width;
    int64_t rows; /* of a pass, if several layers read the one with the window; 0: no other does */
    uint32_t seed;
    void *scratch;
    sequence all[N_TABLE];
    uint64_t n_shared, n_kept, n_ring; /* positions of other sequences; truncated ones that stayed; rings */
} setting;

static uint32_t draw(setting *s, int64_t n) {
    s->seed = s->seed * 1664525 + 1013904223;
    return (s->seed >> 8) % (uint32_t)n;
}

/* n_page: for all tables, which reserve none; 0: they do. each: every page has a part. rows: layers read the
 * windows of others. */
static setting *setting_open(type_id type, int64_t n_page, bool each, uint64_t more, int64_t rows,
                             uint32_t seed) {
    const uint64_t caps[NIB_N_TIER] = {NIB_AUTO, NIB_AUTO, NIB_AUTO};
    const kv_formats formats = {.type = type, .slides = true, .rows = (int)rows};
    nib_error err = {0};
    setting *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->seed = seed;
    s->of = tiny_layout_open(rows ? "tests/data/arch/gemma4" : tiny_folder_gemma3(WINDOW));
    s->rows = rows;
    s->scratch = aligned_alloc(64, (attend_scratch_bytes(D_HEAD, true) + 63) / 64 * 64);
    if (ledger_open(places_of(caps), &s->l, &err) ||
        kv_pool_open(s->of.l, formats, false, true, device_host(), s->l, &s->pages, &err))
        fail_msg("%s", err.message);
    const kv_paging *p = kv_pool_paging(s->pages);
    s->window = p->window;
    s->width = p->layers[0].n_kv_head * p->layers[0].d_head;
    assert_true(p->read_again == (rows > 0) && p->layers[0].d_head <= D_HEAD);
    s->reserved = kv_table_amount(kv_pool_paging(s->pages), N_TABLE, n_page);
    if (each)
        s->reserved.part = n_page;
    if (kv_pool_reserve(s->pages, s->reserved, false, &err) ||
        kv_pool_keep(s->pages, more * kv_pool_page_bytes(s->pages), &s->more, &err))
        fail_msg("%s", err.message);
    return s;
}

static void setting_close(setting *s) {
    for (int i = 0; i < N_TABLE; i++)
        kv_table_close(&s->all[i].kv);
    kv_pool_unkeep(s->pages, s->more);
    kv_pool_unreserve(s->pages, s->reserved);
    nib_memory now;
    ledger_report(s->l, &now);
    assert_int_equal(now.owner[NIB_OWNER_KV], 0);
    kv_pool_close(s->pages);
    ledger_close(s->l);
    tiny_layout_close(&s->of);
    free(s->scratch);
    free(s);
}

static void open_sequence(setting *s, sequence *q) {
    nib_error err = {0};
    if (kv_table_open(&q->kv, s->pages, s->of.l, device_host(), s->l, N_CTX,
                      s->reserved.page ? &s->reserved : NULL, &err))
        fail_msg("%s", err.message);
    q->open = true;
    q->n = q->end = 0;
}

/* Tokens from position `first` on: few texts, so that prefixes are often equal. */
static void draw_tokens(setting *s, sequence *q, int64_t first, int64_t end) {
    const uint32_t text = draw(s, 3);
    for (int64_t i = first; i < end; i++)
        q->tokens[i] = (int32_t)((uint32_t)(i / 150) * text % 7 + (draw(s, 400) == 0));
    uint32_t h = 17;
    for (int64_t i = 0; i < end; i++) {
        h = h * 31 + (uint32_t)q->tokens[i];
        q->values[i] = (float)((h >> 4) % 2048);
    }
}

static void check_position(const setting *s, const sequence *q, int layer, int64_t p) {
    static float query[N_KV_HEAD * D_HEAD], out[N_KV_HEAD * D_HEAD];
    const attend_args a = {.kv = q->kv.layers[layer],
                           .q = query,
                           .out = out,
                           .n_row = 1,
                           .first_position = p,
                           .n_head = q->kv.layers[layer].n_kv_head,
                           .window = 1,
                           .scale = 1,
                           .scratch = s->scratch};
    kernels_table_for("ref")->attend(&a, 0, a.n_head, 0, 1);
    if (out[0] != q->values[p])
        fail_msg("layer %d, position %d holds %g", layer, (int)p, (double)out[0]);
}

/* Some of the positions that a row at p reads, the first and the last one among them. */
static void check_row(setting *s, const sequence *q, int layer, int64_t p) {
    const bool slides = kv_pool_paging(s->pages)->layers[layer].slides;
    const int64_t first = slides ? NUM_MAX(p + 1 - s->window, 0) : 0;
    check_position(s, q, layer, first);
    check_position(s, q, layer, p);
    for (int i = 0; i < 3; i++)
        check_position(s, q, layer, first + draw(s, p + 1 - first));
}

static void write_rows(const setting *s, const sequence *q, int layer, int64_t first, int64_t end) {
    float row[N_KV_HEAD * D_HEAD];
    for (int64_t p = first; p < end; p++) {
        for (int64_t i = 0; i < s->width; i++)
            row[i] = q->values[p];
        kernels_table_for("ref")->kv_store(&q->kv.layers[layer], false, p, row);
        kernels_table_for("ref")->kv_store(&q->kv.layers[layer], true, p, row);
    }
}

/* A pass of some tables: layer by layer, in pieces of at most KV_ROWS rows. */
static void run_pass(setting *s, sequence *const *in, int n) {
    for (int i = 0; i < n; i++)
        assert_int_equal(kv_table_reach(&in[i]->kv, in[i]->n, in[i]->end, in[i]->end, false, NULL), NIB_OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(kv_table_fill(&in[i]->kv, in[i]->end, NULL), NIB_OK);
    const bool fails = draw(s, 12) == 0;
    for (int layer = 0; layer < N_LAYER - fails; layer++)
        for (int i = 0; i < n; i++)
            for (int64_t first = in[i]->n, end; first < in[i]->end; first = end) {
                const int64_t n_row = 1 + draw(s, KV_ROWS);
                end = NUM_MIN(in[i]->end, first + n_row);
                write_rows(s, in[i], layer, first, end);
                check_row(s, in[i], layer, first);
                check_row(s, in[i], layer, end - 1);
            }
    for (int i = 0; i < n && s->rows && !fails; i++)
        for (int64_t p = in[i]->n; p < in[i]->end; p += 1 + draw(s, 40))
            check_row(s, in[i], 0, p);
    for (int i = 0; i < n; i++) {
        s->n_ring += in[i]->kv.n_part - in[i]->kv.first_part < in[i]->kv.n_page - in[i]->n / KV_BLOCK;
        kv_table_settle(&in[i]->kv);
        if (fails)
            continue;
        kv_table_learn(&in[i]->kv, in[i]->tokens, in[i]->n, in[i]->end);
        in[i]->n = in[i]->end;
        kv_table_advance(&in[i]->kv, in[i]->n);
    }
}

/* Prepares a table for a pass; false: it has none. */
static bool prepare(setting *s, sequence *q) {
    if (!q->open)
        open_sequence(s, q);
    if (draw(s, 9) == 0) {
        kv_table_close(&q->kv);
        return q->open = false;
    }
    const int64_t before = q->n;
    int64_t same = before;
    if (draw(s, 4) == 0)
        same = draw(s, 2) ? draw(s, q->n + 1) : q->n - draw(s, NUM_MIN(q->n + 1, 60));
    q->n = kv_table_keep(&q->kv, same);
    s->n_kept += same < before && q->n == same;
    assert_true(q->n <= same);
    const int64_t n_row = 1 + (draw(s, 2) ? draw(s, 20) : draw(s, 500));
    q->end = NUM_MIN(N_CTX, same + n_row);
    if (q->end == same)
        return false;
    draw_tokens(s, q, same, q->end);
    const int64_t kept = q->n;
    q->n = kv_table_adopt(&q->kv, q->tokens, q->n, q->end - 1);
    s->n_shared += (uint64_t)(q->n - kept);
    return true;
}

static void check_use(const setting *s) {
    kv_usage u;
    kv_pool_usage(s->pages, &u);
    assert_true(u.used <= u.reserved && u.parts_used <= u.parts_reserved);
    for (int i = 0; i < N_TABLE; i++)
        assert_true(!s->all[i].open ||
                    s->all[i].kv.n_part - s->all[i].kv.first_part <= s->all[i].kv.max_part);
}

static void any_steps(setting *s, int n_table) {
    for (int step = 0; step < N_STEP / slow_step(3); step++) {
        sequence *in[N_TABLE];
        int n = 0;
        int64_t left = s->rows ? s->rows : N_TABLE * N_CTX;
        for (int i = 0; i < n_table; i++) {
            sequence *q = &s->all[i];
            if (!draw(s, 2) || !prepare(s, q) || q->n >= (q->end = NUM_MIN(q->end, q->n + left)))
                continue;
            left -= q->end - q->n;
            in[n++] = q;
        }
        run_pass(s, in, n);
        for (int i = 0; i < n; i++)
            for (int layer = 0; layer < N_LAYER && in[i]->n > 0; layer++)
                if (in[i]->n == in[i]->end)
                    check_row(s, in[i], layer, in[i]->n - 1);
        check_use(s);
    }
}

static void any_order(void **state) {
    (void)state;
    static const struct {
        type_id type;
        int64_t n_page;
        bool each;
        uint64_t more;
        int n_table;
        int64_t rows;
    } cases[] = {{TYPE_F16, 0, false, 0, N_TABLE, 0},
                 {TYPE_F32, 0, false, 30, N_TABLE, 0},
                 {TYPE_F32, N_TABLE * 16, false, 0, N_TABLE, 0},
                 {TYPE_F32, N_TABLE * 16, true, 0, N_TABLE, 0},
                 {TYPE_F32, 0, false, 0, 1, 0},
                 {TYPE_F16, 0, false, 0, 2, 0},
                 {TYPE_F16, 0, false, 0, 1, 500},
                 {TYPE_F32, N_TABLE * 16, false, 0, N_TABLE, 700}};
    uint64_t n_shared = 0, n_kept = 0, n_ring = 0;
    for (uint32_t i = 0; i < NUM_COUNT(cases); i++) {
        setting *s =
            setting_open(cases[i].type, cases[i].n_page, cases[i].each, cases[i].more, cases[i].rows, i + 1);
        any_steps(s, cases[i].n_table);
        assert_true(s->n_ring == 0 || s->rows == 0);
        n_shared += s->n_shared;
        n_kept += s->n_kept;
        n_ring += s->n_ring;
        setting_close(s);
    }
    assert_true(n_shared > 1000 && n_kept > 10 && n_ring > 3);
}

static void reach(setting *s, sequence *q, int64_t end) {
    (void)s;
    assert_int_equal(kv_table_reach(&q->kv, q->n, end, end, false, NULL), NIB_OK);
    assert_int_equal(kv_table_fill(&q->kv, end, NULL), NIB_OK);
    kv_table_settle(&q->kv);
    kv_table_learn(&q->kv, q->tokens, q->n, end);
    q->n = end;
}

/* A table of one sequence has as many parts as its window needs, however long it is; they are charged. */
static void parts_of_a_window(void **state) {
    (void)state;
    setting *s = setting_open(TYPE_F16, 0, false, 0, 0, 1);
    sequence *q = &s->all[0];
    const kv_paging *p = kv_pool_paging(s->pages);
    uint64_t bytes, touched;
    nib_memory now;
    kv_usage u;
    open_sequence(s, q);
    assert_int_equal(p->window, WINDOW);
    assert_int_equal(p->page_bytes, p->part_bytes); /* every second layer has the window */
    assert_int_equal(kv_table_bytes(s->of.l, p->formats, false, N_CTX, &bytes, NULL), NIB_OK);
    assert_int_equal(bytes, 16 * p->page_bytes + QUOTA * p->part_bytes);
    for (int64_t end = 50; end <= N_CTX; end += 190) {
        reach(s, q, end);
        kv_pool_usage(s->pages, &u);
        assert_true(u.parts_used <= QUOTA && u.parts_reserved == QUOTA);
        assert_int_equal(kv_table_touched(s->of.l, p->formats, end, &touched, NULL), NIB_OK);
        ledger_report(s->l, &now);
        assert_true(now.owner[NIB_OWNER_KV] <= bytes && touched <= now.owner[NIB_OWNER_KV]);
    }
    assert_int_equal(kv_table_keep(&q->kv, q->n - 20), q->n - 20);
    assert_int_equal(kv_table_keep(&q->kv, 600), 0); /* the window before it is gone */
    setting_close(s);
}

/* A prefix that ends is adopted where all parts before its end are left. */
static void prefixes_end_where_parts_are(void **state) {
    (void)state;
    setting *s = setting_open(TYPE_F16, 0, false, 16, 0, 1);
    sequence *a = &s->all[0], *b = &s->all[1];
    open_sequence(s, a);
    reach(s, a, 512);
    open_sequence(s, b);
    assert_int_equal(kv_table_adopt(&b->kv, b->tokens, 0, 300), 300); /* all parts are left */
    kv_table_close(&b->kv);
    open_sequence(s, b);
    assert_int_equal(kv_table_shareable(&a->kv, 8), 8);
    assert_int_equal(kv_table_shareable(&a->kv, 2), 0);
    kv_table_share(&b->kv, &a->kv, 8);
    b->n = 512;
    reach(s, a, 530);
    reach(s, b, 1000); /* a ring: the parts that a refers to are copied */
    assert_int_equal(kv_table_keep(&a->kv, 512), 512);
    kv_table_close(&a->kv);
    setting_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order),
        cmocka_unit_test(parts_of_a_window),
        cmocka_unit_test(prefixes_end_where_parts_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
