/* Layouts: blocks in other formats and layers left out are like a model that was opened that way. Impossible
 * layouts are refused. The model and every other layout stay unchanged. */
#include "base/num.h"
#include "model/page_layout.h"
#include "support/faults.h"
#include "support/tinylayout.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* 192 of width is not a multiple of 128: the last group of a row is short. */
static const tiny_shape tied = {TYPE_Q4_1, 3, 192, 320, 6, 2, 256, 64, true};
static const tiny_shape untied = {TYPE_F32, 3, 192, 320, 6, 2, 256, 64, false};
static const tiny_shape packed_head = {TYPE_Q8_0, 3, 192, 320, 6, 2, 256, 64, false};

static uint64_t round64(uint64_t n) {
    return (n + 63) / 64 * 64;
}

/* Sums and costs follow from the weights. */
static void check_block(const layout *l, int b) {
    const block *blk = layout_block(l, b);
    uint64_t sum = 0, bytes = 0;
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        sum += round64(w->bytes);
        if (w->vector || w->shared_block >= 0)
            continue;
        assert_true(pack_bytes(&w->format, w->n, w->k, &bytes));
        assert_int_equal(w->bytes, bytes);
    }
    assert_int_equal(blk->bytes, sum);
    for (int i = 0; i < blk->program.n_op; i++) {
        const op *o = &blk->program.ops[i];
        const weight *w = o->w < 0 ? NULL : &blk->weights[o->w];
        if (w && w->shared_block >= 0) {
            const weight *owner = &layout_block(l, w->shared_block)->weights[w->shared_index];
            assert_memory_equal(&w->format, &owner->format, sizeof w->format);
            w = owner;
        }
        if (o->kind == OP_LINEAR)
            assert_int_equal(o->cost.weight_bytes, w->bytes);
        if (o->kind == OP_EMBED)
            assert_int_equal(o->cost.act_bytes, w->k * 4 + (int64_t)w->bytes / w->n);
    }
}

static void check_all(const layout *l) {
    for (int b = 0; b < layout_n_block(l); b++)
        check_block(l, b);
}

static const weight *matrix(const layout *l, int b, const char *name) {
    const block *blk = layout_block(l, b);
    for (int i = 0; i < blk->n_weight; i++)
        if (!strcmp(blk->weights[i].name, name))
            return &blk->weights[i];
    fail_msg("no %s", name);
    return NULL;
}

static void formats_and_costs(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&tied, &untied};
    static const char *const formats[] = {"u4g64",  "u8g128", "u3g32",  "u2g128a",
                                          "u6g64t", "u5grow", "u4growp"};
    for (size_t s = 0; s < 2; s++) {
        tiny_layout of = tiny_layout_open(tiny_model("m.gguf", shapes[s]));
        check_all(of.l);
        for (size_t f = 0; f < NUM_COUNT(formats); f++) {
            const layout_choice choice = {.format = formats[f]};
            nib_error err = {0};
            pack_format wanted;
            layout *none = NULL;
            if (!pack_from_name(formats[f], 192, &wanted)) {
                assert_int_equal(layout_make(of.m, &choice, &none, &err), NIB_E_USAGE);
                assert_null(none);
                continue;
            }
            tiny_layout_change(&of, &choice);
            check_all(of.l);
            assert_memory_equal(&matrix(of.l, 1, "q")->format, &wanted, sizeof wanted);
        }
        tiny_layout_close(&of);
    }
}

/* Compares all fields of a block. */
static uint64_t sum_of(const block *blk) {
    const struct {
        const void *data;
        size_t n;
    } parts[] = {{blk->weights, (size_t)blk->n_weight * sizeof *blk->weights},
                 {blk->program.ops, (size_t)blk->program.n_op * sizeof *blk->program.ops},
                 {&blk->bytes, sizeof blk->bytes}};
    uint64_t h = 17;
    for (size_t i = 0; i < NUM_COUNT(parts); i++)
        for (size_t j = 0; j < parts[i].n; j++)
            h = h * 31 + ((const uint8_t *)parts[i].data)[j];
    return h;
}

static pack_kind planes(const void *user, int b, const weight *w) {
    (void)user, (void)b, (void)w;
    return PACK_PLANES;
}

static const float *same_columns(const void *user, int b, int w) {
    (void)b, (void)w;
    return user;
}

enum { N_LAYOUT = 7 };

/* One of each kind, some of them made of others. */
static void make_all(const model *m, const layout_part *parts, layout *made[N_LAYOUT]) {
    static const float columns[320] = {1};
    const layout_choice choices[] = {{0}, {.format = "u3g32"}, {.format = "u4g64+u4g64"}, {.parts = parts}};
    nib_error err = {0};
    for (size_t i = 0; i < NUM_COUNT(choices); i++)
        assert_int_equal(layout_make(m, &choices[i], &made[i], &err), NIB_OK);
    assert_int_equal(layout_with_packings(made[2], planes, NULL, &made[4], &err), NIB_OK);
    assert_int_equal(layout_with_imatrix(made[3], same_columns, columns, &made[5], &err), NIB_OK);
    assert_int_equal(layout_with_shortlist(made[0], true, &made[6], &err), NIB_OK);
}

/* Layouts are made and freed in any order; the model and the other layouts are unchanged. */
static void nothing_is_changed(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&tied, &packed_head};
    const layout_part parts[] = {
        {"u4g64w", false}, {"u4g64", false}, {"", true}, {"file", false}, {"file", false}};
    for (size_t s = 0; s < 2; s++) {
        tiny_layout of = tiny_layout_open(tiny_model("m.gguf", shapes[s]));
        const int n = layout_n_block(of.l);
        layout *first[N_LAYOUT], *again[N_LAYOUT];
        uint64_t model_was[8], was[N_LAYOUT][8];
        assert_int_equal(n, (int)NUM_COUNT(parts));
        for (int b = 0; b < n; b++)
            model_was[b] = sum_of(model_block(of.m, b));
        make_all(of.m, parts, first);
        for (int i = 0; i < N_LAYOUT; i++)
            for (int b = 0; b < n; b++)
                was[i][b] = sum_of(layout_block(first[i], b));
        make_all(of.m, parts, again);
        for (int i = 0; i < N_LAYOUT; i++) {
            for (int b = 0; b < n; b++)
                assert_true(sum_of(layout_block(again[i], b)) == was[i][b]);
            layout_free(again[i]);
            for (int j = i; j < N_LAYOUT; j++)
                for (int b = 0; b < n; b++)
                    assert_true(sum_of(layout_block(first[j], b)) == was[j][b]);
            layout_free(first[i]);
        }
        for (int b = 0; b < n; b++) {
            assert_true(sum_of(model_block(of.m, b)) == model_was[b]);
            assert_ptr_equal(layout_block(of.l, b)->weights, model_block(of.m, b)->weights);
        }
        tiny_layout_close(&of);
    }
}

/* Only differing blocks take memory. */
static void small_where_alike(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &packed_head));
    const uint64_t plain = layout_heap_bytes(of.l);
    nib_error err = {0};
    layout *l = NULL;
    assert_int_equal(layout_with_shortlist(of.l, true, &l, &err), NIB_OK);
    assert_true(layout_has_shortlist(l) && !layout_has_shortlist(of.l));
    assert_ptr_equal(layout_block(l, 1)->weights, model_block(of.m, 1)->weights);
    layout_free(l);
    tiny_layout_change(&of, &(layout_choice){.format = "file"});
    assert_true(layout_heap_bytes(of.l) == plain);
    tiny_layout_close(&of);
}

/* A tied head changes with its owner and not by itself; vectors never change. */
static void shared_and_vectors(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &tied));
    layout_part parts[] = {
        {"file", false}, {"file", false}, {"file", false}, {"file", false}, {"u4g64", false}};
    const int last = layout_n_block(of.l) - 1;
    pack_format before = matrix(of.l, last, "head")->format;
    assert_int_equal(last + 1, (int)NUM_COUNT(parts));
    tiny_layout_change(&of, &(layout_choice){.parts = parts});
    assert_memory_equal(&matrix(of.l, last, "head")->format, &before, sizeof before);
    strcpy(parts[0].format, "u4g64");
    strcpy(parts[1].format, "u4g64");
    tiny_layout_change(&of, &(layout_choice){.parts = parts});
    assert_int_equal(matrix(of.l, last, "head")->format.bits, 4);
    assert_int_equal(matrix(of.l, last, "head")->format.group, 64);
    assert_int_equal(matrix(of.l, 1, "attn_norm")->bytes, 192 * 4);
    check_all(of.l);
    tiny_layout_close(&of);
}

static void refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"",     "u",       "u1g64",  "u9g64",  "u4g48",  "u4g64x",   "Q4_1",
                                        "FILE", "u4g64at", "u4g-64", "u4g640", "u8g64t", "u4grow p", "file "};
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &tied));
    for (size_t i = 0; i < NUM_COUNT(wrong); i++) {
        layout_part parts[] = {
            {"file", false}, {"file", false}, {"", false}, {"file", false}, {"file", false}};
        nib_error err = {0};
        layout *none = NULL;
        strcpy(parts[2].format, wrong[i]);
        assert_int_equal(layout_make(of.m, &(layout_choice){.parts = parts}, &none, &err), NIB_E_USAGE);
        assert_non_null(strstr(err.message, "layer.1"));
        assert_null(none);
    }
    tiny_layout_close(&of);
}

static void left_out(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &untied));
    nib_error err = {0};
    layout *none = NULL;
    for (int b = 0; b < layout_n_block(of.l); b++) {
        layout_part parts[5] = {
            {"file", false}, {"file", false}, {"file", false}, {"file", false}, {"file", false}};
        parts[b].left_out = true;
        if (layout_block(of.l, b)->layer < 0) {
            assert_int_equal(layout_make(of.m, &(layout_choice){.parts = parts}, &none, &err), NIB_E_USAGE);
            continue;
        }
        tiny_layout_change(&of, &(layout_choice){.parts = parts});
        assert_true(layout_is_left_out(of.l, b));
        assert_int_equal(layout_block(of.l, b)->n_weight, 0);
        assert_int_equal(layout_block(of.l, b)->bytes, 0);
        check_all(of.l);
    }
    assert_null(none);
    tiny_layout_close(&of);
}

/* ---- pages ---- */

/* The same pages, of a layout of its own. */
static void check_alike(const page_layout *a, const page_layout *b) {
    assert_int_equal(a->n_page, b->n_page);
    assert_int_equal(a->image_bytes, b->image_bytes);
    assert_int_equal(a->heap_bytes, b->heap_bytes);
    for (int i = 0; i < a->n_page; i++) {
        assert_int_equal(a->pages[i].block, b->pages[i].block);
        assert_int_equal(a->pages[i].w, b->pages[i].w);
        assert_int_equal(a->pages[i].first_row, b->pages[i].first_row);
        assert_int_equal(a->pages[i].bytes, b->pages[i].bytes);
        assert_int_equal(a->pages[i].table, b->pages[i].table);
    }
    for (int i = 0; i < a->first_use[a->n_block]; i++)
        assert_int_equal(a->uses[i], b->uses[i]);
}

/* Layouts with the same sizes have the same pages; they are cut again if the program or the formats change.
 */
static void pages_of_their_own(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &packed_head));
    nib_error err = {0};
    layout *packinged = NULL, *listed = NULL, *whole = NULL;
    assert_int_equal(layout_with_packings(of.l, planes, NULL, &packinged, &err), NIB_OK);
    assert_ptr_equal(layout_pages(packinged)->of, packinged);
    check_alike(layout_pages(packinged), layout_pages(of.l));
    assert_int_equal(layout_with_shortlist(packinged, true, &listed, &err), NIB_OK);
    layout_free(packinged);
    int n_table = 0;
    for (int i = 0; i < layout_pages(listed)->n_page; i++)
        n_table += layout_pages(listed)->pages[i].table;
    assert_true(n_table > 0);
    assert_int_equal(layout_with_shortlist(listed, false, &whole, &err), NIB_OK);
    layout_free(listed);
    check_alike(layout_pages(whole), layout_pages(of.l));
    layout_free(whole);
    const uint64_t all = layout_pages(of.l)->image_bytes;
    tiny_layout_change(&of, &(layout_choice){.format = "u3g32"});
    assert_true(layout_pages(of.l)->image_bytes < all);
    tiny_layout_close(&of);
}

/* ---- faults ---- */

static nib_status make_some(void *user, nib_error *err) {
    const model *m = user;
    layout *l = NULL, *with = NULL;
    NIB_TRY(layout_make(m, &(layout_choice){.format = "u4g64+u4g64"}, &l, err));
    const nib_status status = layout_with_packings(l, planes, NULL, &with, err);
    if (status == NIB_OK)
        for (int b = 0; b < layout_n_block(with); b++)
            fault_made(layout_block(with, b)->program.ops,
                       (size_t)layout_block(with, b)->program.n_op * sizeof(op));
    layout_free(with);
    layout_free(l);
    return status;
}

static uint32_t seed = 1;

static uint32_t draw(uint32_t n) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

/* Random tiers of all pages, the faster first in the first and in the second slices of each block, and the
 * places that a plan has for them. */
static void draw_places(const page_layout *pages, layout_place *places, uint8_t *home_of) {
    static const int order[] = {PLACE_GPU, PLACE_RAM, PLACE_DISK};
    for (int b = 0; b < pages->n_block; b++) {
        uint32_t at[2] = {draw(3), draw(3)};
        places[b] = (layout_place){.on_gpu = draw(2)};
        for (int i = 0; i < pages->n_page; i++) {
            const weight_page *page = &pages->pages[i];
            uint32_t *const now = &at[page->second];
            if (page->block != b)
                continue;
            *now += *now < 2 && draw(2) ? 1 + draw(2 - *now) : 0;
            home_of[i] = (uint8_t)order[*now];
            places[b].bytes[page->second][home_of[i]] += page->bytes;
        }
    }
}

static void check_tiers(const layout *l, const uint8_t *home_of) {
    const page_layout *pages = layout_pages(l);
    uint64_t sum = 0, all = 0;
    assert_memory_equal(layout_homes(l), home_of, (size_t)pages->n_page);
    for (int t = 0; t < NIB_N_TIER; t++)
        sum += layout_home_bytes(l, t);
    for (int i = 0; i < pages->n_page; i++)
        all += pages->pages[i].bytes;
    assert_int_equal(sum, all);
}

/* Places give each page its tier: also those that are up to a page too large for the fastest tier, and the
 * rest goes to the slowest. Layouts that are made from the layout have the same tiers. */
static void tiers_of_pages(void **state) {
    (void)state;
    static const char *const formats[] = {"file", "u4g64", "u4g64+u4g64"};
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &packed_head));
    assert_null(layout_homes(of.l));
    assert_null(layout_places(of.l));
    assert_int_equal(layout_home_bytes(of.l, PLACE_RAM), 0);
    for (int round = 0; round < 300; round++) {
        layout *plain, *placed, *changed;
        uint8_t home_of[256];
        layout_place places[8];
        layout_choice choice = {.format = formats[round % 3]};
        assert_int_equal(layout_make(of.m, &choice, &plain, NULL), NIB_OK);
        const page_layout *pages = layout_pages(plain);
        assert_true(pages->n_page <= (int)NUM_COUNT(home_of) && pages->n_block <= (int)NUM_COUNT(places));
        draw_places(pages, places, home_of);
        for (int b = 0; b < pages->n_block; b++)
            for (int second = 0; second < 2; second++) { /* rounded otherwise than the pages */
                uint64_t *bytes = places[b].bytes[second];
                const int first = bytes[PLACE_GPU] ? PLACE_GPU : PLACE_RAM;
                if (bytes[first])
                    bytes[first] += round % 4 ? draw(FILE_ALIGN) : 0;
                if (bytes[PLACE_DISK])
                    bytes[PLACE_DISK] = round % 2 ? 1 : UINT64_MAX;
            }
        choice.places = places;
        assert_int_equal(layout_make(of.m, &choice, &placed, NULL), NIB_OK);
        check_tiers(placed, home_of);
        assert_memory_equal(layout_places(placed), places, (size_t)pages->n_block * sizeof *places);
        assert_true(layout_heap_bytes(placed) >= layout_heap_bytes(plain) + (uint64_t)pages->n_page);
        assert_int_equal(layout_with_packings(placed, planes, NULL, &changed, NULL), NIB_OK);
        check_tiers(changed, home_of);
        layout_free(placed);
        check_tiers(changed, home_of);
        layout_free(changed);
        layout_free(plain);
    }
    tiny_layout_close(&of);
}

/* Without bytes on any tier, a block is in RAM. */
static void zeroed_places(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &tied));
    layout_place places[8] = {{.on_gpu = false}};
    tiny_layout_change(&of, &(layout_choice){.places = places});
    assert_int_equal(layout_home_bytes(of.l, PLACE_GPU) + layout_home_bytes(of.l, PLACE_DISK), 0);
    assert_true(layout_home_bytes(of.l, PLACE_RAM) > 0);
    tiny_layout_close(&of);
}

static void no_memory(void **state) {
    (void)state;
    tiny_layout of = tiny_layout_open(tiny_model("m.gguf", &tied));
    assert_true(fault_sweep(FAULT_ALLOC, 1, make_some, of.m) >= 4);
    tiny_layout_close(&of);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_and_costs),
        cmocka_unit_test(nothing_is_changed),
        cmocka_unit_test(small_where_alike),
        cmocka_unit_test(shared_and_vectors),
        cmocka_unit_test(refused),
        cmocka_unit_test(left_out),
        cmocka_unit_test(pages_of_their_own),
        cmocka_unit_test(tiers_of_pages),
        cmocka_unit_test(zeroed_places),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
