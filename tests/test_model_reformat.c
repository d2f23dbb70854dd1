/* Blocks in other formats and layers left out: what the model then says of itself is what opening it that way
 * would say, and what cannot be is refused and changes nothing. */
#include "base/num.h"
#include "model/reformat.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* 192 of width is not a multiple of 128: the last group of a row is short. */
static const tiny_shape tied = {TYPE_Q4_1, 3, 192, 320, 6, 2, 256, 64, true};
static const tiny_shape untied = {TYPE_F32, 3, 192, 320, 6, 2, 256, 64, false};

static model *open_model(const char *path) {
    const logger silent = {0};
    nib_error err = {0};
    model *m = NULL;
    if (model_open(path, &silent, &m, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return m;
}

static uint64_t round64(uint64_t n) {
    return (n + 63) / 64 * 64;
}

/* Sums and costs follow from the weights. */
static void check_block(const model *m, int b) {
    const block *blk = model_block(m, b);
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
            const weight *owner = &model_block(m, w->shared_block)->weights[w->shared_index];
            assert_memory_equal(&w->format, &owner->format, sizeof w->format);
            w = owner;
        }
        if (o->kind == OP_LINEAR)
            assert_int_equal(o->cost.weight_bytes, w->bytes);
        if (o->kind == OP_EMBED)
            assert_int_equal(o->cost.act_bytes, w->k * 4 + (int64_t)w->bytes / w->n);
    }
}

static void check_all(const model *m) {
    for (int b = 0; b < model_n_block(m); b++)
        check_block(m, b);
}

static const weight *matrix(const model *m, int b, const char *name) {
    const block *blk = model_block(m, b);
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
        model *m = open_model(tiny_model("m.gguf", shapes[s]));
        nib_error err = {0};
        check_all(m);
        for (size_t f = 0; f < NUM_COUNT(formats); f++)
            for (int b = 0; b < model_n_block(m); b++) {
                pack_format wanted;
                if (!pack_from_name(formats[f], 192, &wanted)) {
                    assert_int_equal(model_reformat(m, b, formats[f], &err), NIB_E_USAGE);
                    continue;
                }
                assert_int_equal(model_reformat(m, b, formats[f], &err), NIB_OK);
                check_all(m);
                if (b == 1)
                    assert_memory_equal(&matrix(m, b, "q")->format, &wanted, sizeof wanted);
            }
        model_close(m);
    }
}

static void back_to_the_file(void **state) {
    (void)state;
    model *m = open_model(tiny_model("m.gguf", &tied)), *as_is = open_model(tiny_model("m.gguf", &tied));
    nib_error err = {0};
    for (int b = 0; b < model_n_block(m); b++)
        assert_int_equal(model_reformat(m, b, "u3g32", &err), NIB_OK);
    assert_true(model_block(m, 1)->bytes < model_block(as_is, 1)->bytes);
    for (int b = 0; b < model_n_block(m); b++) {
        assert_int_equal(model_reformat(m, b, "file", &err), NIB_OK);
        const block *now = model_block(m, b), *was = model_block(as_is, b);
        assert_int_equal(now->bytes, was->bytes);
        for (int i = 0; i < now->n_weight; i++)
            assert_memory_equal(&now->weights[i].format, &was->weights[i].format, sizeof(pack_format));
    }
    check_all(m);
    model_close(m);
    model_close(as_is);
}

/* A tied head changes with its owner and not by itself; vectors never change. */
static void shared_and_vectors(void **state) {
    (void)state;
    model *m = open_model(tiny_model("m.gguf", &tied));
    nib_error err = {0};
    int last = model_n_block(m) - 1;
    pack_format before = matrix(m, last, "head")->format;
    assert_int_equal(model_reformat(m, last, "u4g64", &err), NIB_OK);
    assert_memory_equal(&matrix(m, last, "head")->format, &before, sizeof before);
    assert_int_equal(model_reformat(m, 0, "u4g64", &err), NIB_OK);
    assert_int_equal(matrix(m, last, "head")->format.bits, 4);
    assert_int_equal(matrix(m, last, "head")->format.group, 64);
    assert_int_equal(model_reformat(m, 1, "u4g64", &err), NIB_OK);
    assert_int_equal(matrix(m, 1, "attn_norm")->bytes, 192 * 4);
    model_close(m);
}

static void refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"",     "u",       "u1g64",  "u9g64",  "u4g48",  "u4g64x",   "Q4_1",
                                        "FILE", "u4g64at", "u4g-64", "u4g640", "u8g64t", "u4grow p", "file "};
    model *m = open_model(tiny_model("m.gguf", &tied));
    for (size_t i = 0; i < NUM_COUNT(wrong); i++) {
        nib_error err = {0};
        uint64_t bytes = model_block(m, 2)->bytes;
        assert_int_equal(model_reformat(m, 2, wrong[i], &err), NIB_E_USAGE);
        assert_non_null(strstr(err.message, "layer.1"));
        assert_int_equal(model_block(m, 2)->bytes, bytes);
    }
    check_all(m);
    model_close(m);
}

static void left_out(void **state) {
    (void)state;
    model *m = open_model(tiny_model("m.gguf", &untied));
    nib_error err = {0};
    assert_int_equal(model_leave_out(m, 0, &err), NIB_E_USAGE);
    assert_int_equal(model_leave_out(m, model_n_block(m) - 1, &err), NIB_E_USAGE);
    assert_false(model_is_left_out(m, 2));
    assert_int_equal(model_leave_out(m, 2, &err), NIB_OK);
    assert_true(model_is_left_out(m, 2));
    assert_int_equal(model_block(m, 2)->n_weight, 0);
    assert_int_equal(model_block(m, 2)->bytes, 0);
    assert_int_equal(model_leave_out(m, 2, &err), NIB_OK);
    assert_int_equal(model_reformat(m, 2, "u4g64", &err), NIB_OK); /* of no matrices */
    check_all(m);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_and_costs),  cmocka_unit_test(back_to_the_file),
        cmocka_unit_test(shared_and_vectors), cmocka_unit_test(refused),
        cmocka_unit_test(left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
