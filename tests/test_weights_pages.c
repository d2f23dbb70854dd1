/* Pages: every byte of the weights once, in the image's order, with a bounded size; and the predicted charges
 * of the pager. */
#include "base/mem.h"
#include "base/num.h"
#include "model/model.h"
#include "support/process.h"
#include "support/tinyfolder.h"
#include "support/tinylayout.h"
#include "support/tinymodel.h"
#include "weights/pager.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const tiny_shape tied = {TYPE_Q8_0, 8, 256, 768, 8, 2, 8192, 128, true};
static const tiny_shape untied = {TYPE_Q4_1, 6, 320, 1024, 4, 4, 8192, 128, false};
static const tiny_shape wide = {TYPE_Q4_0, 2, 1024, 4096, 8, 8, 2048, 64, true};

enum { MAX_BYTES = 64 << 20, THREADS = 2 };

static const tiny_shape coarse = {TYPE_Q4_1, 2, 576, 1536, 9, 3, 2048, 64, true};
static const tiny_shape large = {TYPE_Q4_0, 2, 1056, 1056, 8, 8, 4096, 64, true};

/* The models of two tests, each made once. */
static const tiny_shape *const shapes[] = {&tied, &untied, &wide};
static const char *model_of(int i) {
    static const char *const names[] = {"tied.gguf", "untied.gguf", "wide.gguf"};
    static char made[3][512];
    if (!made[i][0])
        snprintf(made[i], sizeof made[i], "%s", tiny_model(names[i], shapes[i]));
    return made[i];
}

static uint64_t own_bytes(const block *blk) {
    uint64_t all = 0;
    for (int i = 0; i < blk->n_weight; i++)
        if (!blk->weights[i].vector && blk->weights[i].shared_block < 0)
            all += (blk->weights[i].bytes + 63) / 64 * 64;
    return all;
}

static void check(const char *path) {
    nib_error err = {0};
    pager_page *pages;
    pager_need need;
    int n_page;
    tiny_layout of = tiny_layout_open(path);
    assert_int_equal(pager_pages(of.l, &pages, &n_page, &err), NIB_OK);
    need = pager_needs(of.l, 2);
    uint64_t all = need.vectors;
    for (int i = 0; i < n_page; i++) {
        assert_true(pages[i].bytes > 0 && pages[i].bytes % 4096 == 0);
        assert_true(pages[i].bytes <= UINT64_C(5) << 18);
        assert_true(pages[i].table || pages[i].bytes <= need.max_page);
        all += pages[i].bytes;
    }
    assert_int_equal(all, need.image);
    for (int b = 0; b < layout_n_block(of.l); b++) {
        uint64_t sum = 0, n = 0, own = own_bytes(layout_block(of.l, b));
        for (int i = 0; i < n_page; i++)
            if (pages[i].block == b)
                sum += pages[i].bytes, n++;
        assert_in_range(sum, own, own + 4096 * n);
    }
    mem_free(pages);
    tiny_layout_close(&of);
}

static void every_byte_in_one_page(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        check(model_of(i));
    check(tiny_folder_gpt2());
}

static tiny_layout open_shape(const tiny_shape *shape, pager_need *need) {
    const tiny_layout of = tiny_layout_open(tiny_model("slots.gguf", shape));
    *need = pager_needs(of.l, THREADS);
    return of;
}

/* A slot is as large as the largest page: pages that are much smaller would leave the ring half empty. Some
 * matrices of this shape can only be cut in 180 KiB, where 64 would do for the others. */
static void pages_fill_their_slots(void **state) {
    (void)state;
    pager_page *pages;
    pager_need need;
    uint64_t all = 0, n = 0;
    int n_page;
    tiny_layout of = open_shape(&coarse, &need);
    assert_int_equal(pager_pages(of.l, &pages, &n_page, NULL), NIB_OK);
    for (int i = 0; i < n_page; i++) {
        all += pages[i].table ? 0 : pages[i].bytes;
        n += !pages[i].table;
    }
    assert_true(10 * all > 8 * n * need.max_page);
    mem_free(pages);
    tiny_layout_close(&of);
}

/* A ring of several huge pages consists of whole ones; little else is charged with it. */
static void large_rings_are_huge_pages(void **state) {
    (void)state;
    pager_need need;
    tiny_layout of = open_shape(&large, &need);
    assert_true(need.ring > 4 << 20);
    assert_in_range(need.ring % (2 << 20), 0, 64 << 10);
    tiny_layout_close(&of);
}

/* ---- what is charged ---- */

typedef struct opened {
    tiny_layout of;
    ledger *l;
    pool *threads;
    pager_need need;
} opened;

static void begin(opened *o, const char *path, uint64_t headroom) {
    const uint64_t caps[NIB_N_TIER] = {process_bytes() + LEDGER_RUNTIME_MARGIN + headroom, NIB_AUTO,
                                       NIB_AUTO};
    memset(o, 0, sizeof *o);
    o->of = tiny_layout_open(path);
    assert_int_equal(pool_open(THREADS, &o->threads, NULL), NIB_OK);
    assert_int_equal(ledger_open(places_of(caps), &o->l, NULL), NIB_OK);
    o->need = pager_needs(o->of.l, THREADS);
}

static void end(opened *o) {
    ledger_close(o->l);
    pool_close(o->threads);
    tiny_layout_close(&o->of);
}

/* A pager in which about half of the pages stay (half) or all of them; *resident: their bytes. */
static nib_status open_some(const opened *o, bool half, pager **out, uint64_t *resident, nib_error *err) {
    const pager_options want = {.threads = o->threads};
    pager_page *pages;
    pager_need need;
    int n_page;
    nib_status status = NIB_OK;
    assert_int_equal(pager_open(o->of.l, o->l, &want, out, err), NIB_OK);
    assert_int_equal(pager_list(*out, &pages, &n_page, &need, err), NIB_OK);
    assert_int_equal(need.image, o->need.image);
    uint8_t *home_of = mem_alloc((size_t)n_page);
    *resident = need.vectors;
    for (int i = 0; i < n_page; i++) {
        home_of[i] = half && i % 2 ? PLACE_DISK : PLACE_RAM;
        *resident += home_of[i] == PLACE_RAM ? pages[i].bytes : 0;
    }
    if (half)
        status = pager_source(*out, NIB_AUTO, err);
    if (status == NIB_OK)
        status = pager_load(*out, home_of, err);
    mem_free(home_of);
    mem_free(pages);
    return status;
}

static void as_it_was_predicted(void **state) {
    (void)state;
    nib_memory mem;
    pager *p;
    uint64_t resident;
    nib_error err = {0};
    for (int i = 0; i < 3; i++) {
        opened o;
        begin(&o, model_of(i), MAX_BYTES);
        assert_int_equal(open_some(&o, false, &p, &resident, &err), NIB_OK);
        ledger_report(o.l, &mem);
        assert_int_equal(resident, o.need.image);
        assert_int_equal(mem.owner[NIB_OWNER_WEIGHTS], o.need.image);
        assert_int_equal(mem.owner[NIB_OWNER_TABLES], o.need.tables);
        assert_int_equal(mem.owner[NIB_OWNER_STAGING], 0);
        pager_close(p);
        /* exactly the pages of the list */
        assert_int_equal(open_some(&o, true, &p, &resident, &err), NIB_OK);
        ledger_report(o.l, &mem);
        assert_int_equal(mem.owner[NIB_OWNER_WEIGHTS], resident);
        assert_int_equal(mem.owner[NIB_OWNER_TABLES], o.need.tables);
        assert_int_equal(mem.owner[NIB_OWNER_STAGING], o.need.ring + o.need.row);
        pager_close(p);
        ledger_report(o.l, &mem);
        assert_int_equal(mem.owner[NIB_OWNER_WEIGHTS] + mem.owner[NIB_OWNER_TABLES], 0);
        end(&o);
    }
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    pager *p = NULL;
    uint64_t half;
    nib_error err = {0};
    opened o;
    const char *path = model_of(0);
    begin(&o, path, MAX_BYTES);
    assert_int_equal(open_some(&o, true, &p, &half, &err), NIB_OK);
    const uint64_t min = o.need.tables + half + NUM_MAX(o.need.ring + o.need.row, o.need.stream_staging);
    pager_close(p);
    end(&o);
    for (int fits = 0; fits < 2; fits++) {
        begin(&o, path, fits ? min + (UINT64_C(1) << 20) : o.need.tables + half / 2);
        assert_int_equal(open_some(&o, true, &p, &half, &err), fits ? NIB_OK : NIB_E_NOFIT);
        pager_close(p);
        end(&o);
    }
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_in_one_page),       cmocka_unit_test(pages_fill_their_slots),
        cmocka_unit_test(large_rings_are_huge_pages),   cmocka_unit_test(as_it_was_predicted),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
