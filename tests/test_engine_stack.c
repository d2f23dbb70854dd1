/* Weights as stacks of two slices: products, looked-up rows and tied heads are those of the slices' sum, by a
 * float64 reference; the same bits for any residency and any way to compute them. Without its second slice a
 * stack is its first slice. */
#include "base/num.h"
#include "measure/prompt_rows.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tempdir.h"
#include "support/tinylayout.h"
#include "support/tinymodel.h"
#include "support/tinyplan.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { N_TOKEN = 20 };

static const tiny_shape tied = {TYPE_F16, 3, 192, 320, 6, 2, 512, 128, true};
static const tiny_shape untied = {TYPE_Q8_0, 3, 256, 640, 8, 2, 512, 128, false};

static logits_rows forward(const char *path, const nib_engine_options *o, const plan *p) {
    nib_engine *e = engine_must_open(path, o, p);
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, nib_engine_info(e)->n_vocab, 1);
    const logits_rows r = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    return r;
}

static void check_same(const logits_rows *want, const char *path, const nib_engine_options *o, const plan *p,
                       const char *how) {
    logits_rows got = forward(path, o, p);
    if (memcmp(want->data, got.data, logits_bytes(want)))
        fail_msg("%s: other bits", how);
    free(got.data);
}

/* ---- the oracle ---- */

typedef struct oracle {
    const view *views; /* of block 1, the first layer */
    const block *b;
    float *x; /* what q, k, v read */
    int64_t k;
    int n_seen;
    const view *embed; /* the embedding's slices */
    const int32_t *tokens;
} oracle;

static int find_weight(const block *b, const char *name, bool second) {
    for (int i = 0; i < b->n_weight; i++)
        if (!strcmp(b->weights[i].name, name) && weight_is_second(&b->weights[i]) == second)
            return i;
    fail_msg("%s: there is no %s slice", name, second ? "second" : "first");
    return -1;
}

/* Row r of both slices, added up. */
static void sum_row(const view *first, const view *second, int64_t r, double *out) {
    float row[2][1024];
    assert_true(first->k <= 1024);
    pack_read_row(first, r, row[0]);
    pack_read_row(second, r, row[1]);
    for (int64_t i = 0; i < first->k; i++)
        out[i] = (double)row[0][i] + (double)row[1][i];
}

static void look_at_input(void *user, const probe_input *in) {
    oracle *o = user;
    if (in->block != 1 || in->w != find_weight(o->b, "q", false))
        return;
    o->k = in->k;
    memcpy(o->x, in->x, (size_t)(in->n_row * in->k) * sizeof *in->x);
}

static void check_product(oracle *o, const probe_data *s, const char *name) {
    const view *first = &o->views[find_weight(o->b, name, false)];
    const view *second = &o->views[find_weight(o->b, name, true)];
    double row[1024];
    for (int64_t n = 0; n < s->width; n++) {
        sum_row(first, second, n, row);
        for (int64_t r = 0; r < s->n_row; r++) {
            double y = 0, size = 0;
            for (int64_t i = 0; i < o->k; i++) {
                y += row[i] * (double)o->x[r * o->k + i];
                size += fabs(row[i] * (double)o->x[r * o->k + i]);
            }
            const double found = (double)s->x[r * s->width + n];
            if (fabs(found - y) > 2e-4 * size)
                fail_msg("%s (%d, %d): %g, expected %g", name, (int)r, (int)n, found, y);
        }
    }
    o->n_seen++;
}

static void look_at_point(void *user, const probe_data *s) {
    oracle *o = user;
    double row[1024];
    if (s->block != 1)
        return;
    if (s->point == PROBE_Q)
        check_product(o, s, "q");
    if (s->point == PROBE_V)
        check_product(o, s, "v");
    if (s->point != PROBE_INPUT)
        return;
    for (int64_t r = 0; r < s->n_row; r++) {
        sum_row(&o->embed[0], &o->embed[1], o->tokens[s->row + r], row);
        for (int64_t i = 0; i < s->width; i++)
            assert_true(fabs((double)s->x[r * s->width + i] - row[i]) <= 1e-6 * (1 + fabs(row[i])));
    }
    o->n_seen++;
}

static void products_are_of_the_sum(void **state) {
    (void)state;
    static const char *const recipes[] = {"u4g64+u4g64", "u3g32a+u5g32", "u4g32+u2g16a"};
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < 6; i++) {
        const char *path = tiny_model("m.gguf", shapes[i % 2]);
        static int32_t tokens[N_TOKEN];
        int begin[] = {0, N_TOKEN};
        calibration c = {.n_prompt = 1};
        tiny_plan h;
        nib_error err = {0};
        prompt_rows rows;
        oracle o = {.tokens = tokens};
        nib_engine_options options = engine_usual();
        options.activation = 16;
        options.n_batch = N_TOKEN;
        options.n_thread = 1 + i % 3;
        tiny_plan_make(&h, path, &recipes[i / 2], 1, NIB_TIER_RAM, NIB_TIER_RAM);
        nib_engine *e = engine_must_open(path, &options, &h.p);
        logits_tokens(tokens, N_TOKEN, 512, 1);
        int64_t starts[] = {begin[0], begin[1]};
        c.tokens = tokens;
        c.begin = starts;
        const engine_parts on = engine_parts_of(e);
        assert_int_equal(prompt_rows_open(&rows, &on, &c, 0, 0, &err), NIB_OK);
        const view *views = pager_views(engine_parts_of(e).step->pager, 0);
        view embed[2];
        for (int s = 0; s < 2; s++)
            embed[s] = views[find_weight(layout_block(engine_parts_of(e).layout, 0),
                                         layout_block(engine_parts_of(e).layout, 0)->weights[0].name, s)];
        o.views = pager_views(engine_parts_of(e).step->pager, 1);
        o.embed = embed;
        o.b = layout_block(engine_parts_of(e).layout, 1);
        o.x = malloc(N_TOKEN * 1024 * sizeof *o.x);
        const probe observer = {.point = look_at_point, .input = look_at_input, .user = &o};
        const pass p = {.segments = rows.segments, .n_segment = 1, .n_head = 1, .probe = &observer};
        assert_int_equal(step_pass(engine_parts_of(e).step, &p, &err), NIB_OK);
        assert_int_equal(o.n_seen, 3);
        free(o.x);
        prompt_rows_close(&rows);
        nib_engine_close(e);
    }
}

/* ---- the same bits ---- */

static const char *const mixed[] = {"u4g64+u4g64", "u3g32+u4g64a", "file", "u5g64+u3g32", "u4g64"};

static void however_it_is_computed(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < 4; i += SANITIZED ? 3 : 1) { /* each shape, and each activation */
        const char *path = tiny_model("m.gguf", shapes[i % 2]);
        nib_engine_options o = engine_usual();
        tiny_plan h;
        tiny_plan_make(&h, path, mixed, 5, NIB_TIER_RAM, NIB_TIER_RAM);
        for (int b = 0; b < h.p.n_block; b++)
            h.blocks[b].activation = i < 2 ? 8 : b % 2 ? 16 : 4;
        logits_rows want = forward(path, &o, &h.p);
        o.no_fuse = true;
        check_same(&want, path, &o, &h.p, "not fused");
        o.no_fuse = false;
        o.n_batch = 1;
        check_same(&want, path, &o, &h.p, "one row at a time");
        o.n_thread = 3;
        check_same(&want, path, &o, &h.p, "one row, three threads");
        o.n_batch = N_TOKEN;
        o.n_thread = 1;
        check_same(&want, path, &o, &h.p, "one thread");
        free(want.data);
    }
}

/* Second slices on disk, everything on disk, one block of four; from the model's files and from a packed one;
 * many rows at once, and one. */
static void wherever_it_is(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < (SANITIZED ? 1 : 2); i++) {
        const char *path = tiny_model("m.gguf", shapes[i]);
        char *folder = strdup(path);
        nib_engine_options o = engine_usual();
        tiny_plan h;
        *strrchr(folder, '/') = '\0';
        o.scratch = folder;
        tiny_plan_make(&h, path, mixed, 5, NIB_TIER_RAM, NIB_TIER_RAM);
        logits_rows want = forward(path, &o, &h.p);
        for (int how = 0; how < 3; how++) {
            o.packed = how ? NIB_PACKED_ON : NIB_PACKED_OFF;
            o.n_batch = how == 2 ? 1 : 16;
            tiny_plan_make(&h, path, mixed, 5, NIB_TIER_RAM, NIB_TIER_DISK);
            check_same(&want, path, &o, &h.p, "second slices on disk");
            tiny_plan_make(&h, path, mixed, 5, NIB_TIER_DISK, NIB_TIER_DISK);
            check_same(&want, path, &o, &h.p, "everything on disk");
            for (int b = 0; b < h.p.n_block; b++)
                for (int s = 0; s < h.blocks[b].n_slice; s++)
                    h.blocks[b].slices[s].tier = b % 4 ? NIB_TIER_RAM : NIB_TIER_DISK;
            check_same(&want, path, &o, &h.p, "every fourth block on disk");
        }
        free(want.data);
        free(folder);
    }
}

/* As the plan says: only second slices are streamed. */
static void second_slices_stream(void **state) {
    (void)state;
    static const char *const form[] = {"u4g64+u4g64"};
    const char *path = tiny_model("m.gguf", &untied);
    nib_engine_options o = engine_usual();
    const nib_slice *s;
    tiny_plan h;
    tiny_plan_make(&h, path, form, 1, NIB_TIER_RAM, NIB_TIER_DISK);
    nib_engine *e = engine_must_open(path, &o, &h.p);
    const size_t n = nib_engine_placement(e, &s);
    int n_second = 0;
    for (size_t i = 0; i < n; i++) {
        const bool second = s[i].format[0] == '+';
        n_second += second;
        assert_int_equal(s[i].tier, second ? NIB_TIER_DISK : NIB_TIER_RAM);
        if (second)
            assert_string_equal(s[i].format, "+u4g64");
    }
    assert_int_equal(n_second, h.p.n_block);
    nib_engine_close(e);
}

/* The one packed file of a folder. */
static struct stat packed_in(const char *scratch) {
    struct stat found = {0};
    char folder[1024], path[1400];
    int n = 0;
    snprintf(folder, sizeof folder, "%s/packed", scratch);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, ".nibpack"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(stat(path, &found), 0);
        n++;
    }
    closedir(d);
    assert_int_equal(n, 1);
    return found;
}

/* A run without second slices uses the file that has them, resident or streamed, and leaves it alone; one
 * with them makes a larger file of one that has none. */
static void one_packed_file_for_both(void **state) {
    (void)state;
    static const char *const stack[] = {"u4g64+u4g64", "file"}, *const alone[] = {"u4g64", "file"};
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < 4; i++) {
        const char *path = tiny_model("m.gguf", shapes[i % 2]);
        char scratch[800], name[24];
        snprintf(name, sizeof name, "both-%d", i);
        snprintf(scratch, sizeof scratch, "%s", temp_path(name));
        nib_engine_options o = engine_usual();
        tiny_plan with, without;
        tiny_plan_make(&with, path, stack, 2, NIB_TIER_RAM, NIB_TIER_DISK);
        tiny_plan_make(&without, path, alone, 2, NIB_TIER_RAM, NIB_TIER_RAM);
        logits_rows both = forward(path, &o, &with.p), base = forward(path, &o, &without.p);
        o.scratch = scratch;
        o.packed = NIB_PACKED_ON; /* would be written again if it were not used */
        for (int tier = 0; tier < 2; tier++) {
            struct stat small = {0};
            tiny_plan_make(&without, path, stack, 2, tier ? NIB_TIER_DISK : NIB_TIER_RAM, PLAN_LEFT_OUT);
            if (i >= 2 && !tier) {
                check_same(&base, path, &o, &without.p, "without second slices, first");
                small = packed_in(scratch);
            }
            check_same(&both, path, &o, &with.p, "second slices from the packed file");
            const struct stat large = packed_in(scratch);
            assert_true(large.st_size > small.st_size);
            check_same(&base, path, &o, &without.p, "without second slices, from the same file");
            const struct stat now = packed_in(scratch);
            assert_true(now.st_ino == large.st_ino && now.st_size == large.st_size);
        }
        free(both.data);
        free(base.data);
    }
}

static void left_out_is_the_first_alone(void **state) {
    (void)state;
    static const char *const stack[] = {"u4g64+u4g64"}, *const alone[] = {"u4g64"};
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < 2; i++) {
        const char *path = tiny_model("m.gguf", shapes[i]);
        const nib_engine_options o = engine_usual();
        tiny_plan h;
        tiny_plan_make(&h, path, alone, 1, NIB_TIER_RAM, NIB_TIER_RAM);
        logits_rows base = forward(path, &o, &h.p);
        tiny_plan_make(&h, path, stack, 1, NIB_TIER_RAM, PLAN_LEFT_OUT);
        check_same(&base, path, &o, &h.p, "second slices left out");
        tiny_plan_make(&h, path, stack, 1, NIB_TIER_RAM, NIB_TIER_RAM);
        logits_rows whole = forward(path, &o, &h.p);
        tiny_plan_make(&h, path, (const char *const[]){"file"}, 1, NIB_TIER_RAM, NIB_TIER_RAM);
        logits_rows plain = forward(path, &o, &h.p);
        double off_whole = 0, off_base = 0;
        for (int64_t j = 0; j < N_TOKEN * plain.n_vocab; j++) {
            off_whole += pow((double)(whole.data[j] - plain.data[j]), 2);
            off_base += pow((double)(base.data[j] - plain.data[j]), 2);
        }
        assert_true(off_whole < off_base / 20);
        free(base.data);
        free(whole.data);
        free(plain.data);
    }
}

/* ---- the layout ---- */

/* A layout with a stack in all blocks, and the model, which is unchanged. */
static void beside_the_model(void **state) {
    (void)state;
    static const char *const forms[] = {"u4g64+u4g64", "u3g32+u3g32"};
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < 2; i++) {
        tiny_layout of = tiny_layout_open(tiny_model("m.gguf", shapes[i]));
        nib_error err = {0};
        layout *none = NULL;
        for (int f = 0; f < 2; f++) {
            tiny_layout_change(&of, &(layout_choice){.format = forms[f]});
            const block *last = layout_block(of.l, layout_n_block(of.l) - 1), *was = model_block(of.m, 1);
            assert_true(last->program.ops[last->program.n_op - 1].adds);
            assert_true(layout_block(of.l, 1)->n_weight > was->n_weight);
            for (int j = 0; j < was->program.n_op; j++)
                assert_false(was->program.ops[j].adds);
        }
        assert_int_equal(layout_make(of.m, &(layout_choice){.format = "u4g64t+u4g64"}, &none, &err),
                         NIB_E_USAGE);
        assert_non_null(strstr(err.message, "embed"));
        assert_null(none);
        tiny_layout_close(&of);
    }
}

/* ---- as text ---- */

/* To text and back. */
static void as_text(void **state) {
    (void)state;
    static const char *const form[] = {"u4g64+u4g64"};
    const char *path = tiny_model("m.gguf", &untied);
    static const int tiers[] = {NIB_TIER_RAM, NIB_TIER_DISK, PLAN_LEFT_OUT};
    for (int i = 0; i < 3; i++) {
        tiny_plan h;
        nib_error err = {0};
        char *text = NULL, *again = NULL;
        plan back;
        tiny_plan_make(&h, path, form, 1, NIB_TIER_RAM, tiers[i]);
        assert_int_equal(plan_print(&h.p, &text, &err), NIB_OK);
        if (plan_parse(text, strlen(text), &back, &err))
            fail_msg("%s", err.message);
        assert_int_equal(plan_print(&back, &again, &err), NIB_OK);
        assert_string_equal(text, again);
        assert_non_null(strstr(text, i == 2 ? "\"+u4g64\", \"bytes\": " : "\"+u4g64\""));
        if (i == 2)
            assert_non_null(strstr(text, "\"tier\": \"none\""));
        plan_clear(&back);
        nib_free(text);
        nib_free(again);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_of_the_sum),  cmocka_unit_test(however_it_is_computed),
        cmocka_unit_test(wherever_it_is),           cmocka_unit_test(second_slices_stream),
        cmocka_unit_test(one_packed_file_for_both), cmocka_unit_test(left_out_is_the_first_alone),
        cmocka_unit_test(beside_the_model),         cmocka_unit_test(as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
