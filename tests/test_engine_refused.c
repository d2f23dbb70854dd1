/* Plans that do not agree with the model, with themselves or with this program are refused, with the block's
 * name or what else is wrong. */
#include "base/num.h"
#include "support/engine.h"
#include "support/tinymodel.h"
#include "support/tinyplan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const tiny_shape shape = {TYPE_Q8_0, 3, 256, 640, 8, 2, 512, 128, false};

typedef struct wrong {
    void (*spoil)(tiny_plan *h);
    const char *named;
    nib_status status;
} wrong;

/* Edits one field of a plan with all blocks in this recipe, in RAM. */
static void check(const char *recipe, const wrong *list, size_t n) {
    const char *path = tiny_model("m.gguf", &shape);
    const nib_engine_options o = engine_usual();
    for (size_t i = 0; i < n; i++) {
        tiny_plan h;
        nib_error err = {0};
        nib_engine *e = NULL;
        tiny_plan_make(&h, path, &recipe, 1, NIB_TIER_RAM, NIB_TIER_RAM);
        list[i].spoil(&h);
        nib_status status = engine_open(path, &o, &(engine_internal){.plan = &h.p}, &e, &err);
        if (status != list[i].status || !strstr(err.message, list[i].named))
            fail_msg("%s, case %zu: status %d, \"%s\"", recipe, i, (int)status, err.message);
        assert_null(e);
    }
}

/* ---- the file's own formats ---- */

static void other_name(tiny_plan *h) {
    strcpy(h->blocks[2].name, "layer.2");
}
static void unended_name(tiny_plan *h) {
    memset(h->blocks[2].name, 'l', sizeof h->blocks[2].name);
}
static void unknown_format(tiny_plan *h) {
    strcpy(h->blocks[2].slices[0].format, "u9g64");
}
static void unended_format(tiny_plan *h) {
    memset(h->blocks[2].slices[0].format, 'u', sizeof h->blocks[2].slices[0].format);
}
static void few_bytes(tiny_plan *h) {
    h->blocks[2].slices[0].bytes /= 2;
}
static void other_format(tiny_plan *h) {
    strcpy(h->blocks[2].slices[0].format, "u3g64"); /* the bytes are unchanged */
}
static void many_bytes(tiny_plan *h) {
    h->blocks[2].slices[1] = h->blocks[2].slices[0];
    h->blocks[2].slices[1].bytes = UINT64_MAX;
    h->blocks[2].n_slice = 2;
}
static void two_formats(tiny_plan *h) {
    h->blocks[2].slices[1] = h->blocks[2].slices[0];
    strcpy(h->blocks[2].slices[1].format, "u4g64");
    h->blocks[2].n_slice = 2;
}
static void no_slices(tiny_plan *h) {
    h->blocks[2].n_slice = 0;
}
static void many_slices(tiny_plan *h) {
    h->blocks[2].n_slice = PLAN_MAX_SLICE + 1;
}
static void on_a_gpu(tiny_plan *h) {
    h->blocks[2].slices[0].tier = NIB_TIER_VRAM;
}
static void odd_activation(tiny_plan *h) {
    h->blocks[2].activation = 5;
}
static void fewer_blocks(tiny_plan *h) {
    h->p.n_block--;
}
static void no_blocks(tiny_plan *h) {
    h->p.blocks = NULL;
}
static void left_out_in_a(tiny_plan *h) {
    tiny_plan_leave_out(h, 1);
    h->p.mode = 'a';
}
static void left_out_with_slices(tiny_plan *h) {
    tiny_plan_leave_out(h, 1);
    h->blocks[2].n_slice = 1;
}
static void no_embedding(tiny_plan *h) {
    tiny_plan_leave_out(h, -1);
}
static void odd_mode(tiny_plan *h) {
    h->p.mode = 'd';
}
static void odd_cache(tiny_plan *h) {
    h->p.kv = (plan_kv)77;
}
static void negative_context(tiny_plan *h) {
    h->p.n_ctx = -1;
}
static void other_content(tiny_plan *h) {
    strcpy(h->p.content, "00000000000000000000000000000000");
}
static void tiny_cap(tiny_plan *h) {
    h->p.cap[NIB_TIER_RAM] = 1 << 20;
}

static void one_slice_a_block(void **state) {
    (void)state;
    static const wrong list[] = {
        {other_name, "layer.1", NIB_E_USAGE},     {unended_name, "layer.1", NIB_E_USAGE},
        {unknown_format, "layer.1", NIB_E_USAGE}, {unended_format, "layer.1", NIB_E_USAGE},
        {few_bytes, "layer.1", NIB_E_USAGE},      {other_format, "layer.1", NIB_E_USAGE},
        {many_bytes, "layer.1", NIB_E_USAGE},     {two_formats, "layer.1", NIB_E_USAGE},
        {no_slices, "layer.1", NIB_E_USAGE},      {many_slices, "slices", NIB_E_USAGE},
        {on_a_gpu, "layer.1", NIB_E_USAGE},       {odd_activation, "layer.1", NIB_E_USAGE},
        {fewer_blocks, "blocks", NIB_E_USAGE},    {no_blocks, "blocks", NIB_E_USAGE},
        {left_out_in_a, "layer.1", NIB_E_USAGE},  {left_out_with_slices, "layer.1", NIB_E_USAGE},
        {no_embedding, "embed", NIB_E_USAGE},     {odd_mode, "mode", NIB_E_USAGE},
        {odd_cache, "plan_kv", NIB_E_USAGE},      {negative_context, "context", NIB_E_USAGE},
        {other_content, "weights", NIB_E_MODEL},  {tiny_cap, "cap", NIB_E_NOFIT},
    };
    check("file", list, NUM_COUNT(list));
}

/* ---- stacks ---- */

static void second_alone(tiny_plan *h) {
    h->blocks[2].slices[0] = h->blocks[2].slices[1];
    h->blocks[2].n_slice = 1;
}
static void two_seconds(tiny_plan *h) {
    h->blocks[2].slices[2] = h->blocks[2].slices[1];
    strcpy(h->blocks[2].slices[2].format, "+u3g64");
    h->blocks[2].n_slice = 3;
}
static void few_second_bytes(tiny_plan *h) {
    h->blocks[2].slices[1].bytes /= 2;
}
static void moved_bytes(tiny_plan *h) {
    h->blocks[2].slices[1].bytes /= 2;
    h->blocks[2].slices[0].bytes += h->blocks[2].slices[1].bytes;
}
static void first_on_disk(tiny_plan *h) {
    h->blocks[2].slices[0].tier = NIB_TIER_DISK;
}
static void first_left_out(tiny_plan *h) {
    h->blocks[2].slices[0].tier = PLAN_LEFT_OUT;
}
static void one_by_column(tiny_plan *h) {
    strcpy(h->blocks[2].slices[1].format, "+u4g64w");
}
static void of_two_levels(tiny_plan *h) {
    strcpy(h->blocks[2].slices[1].format, "+u4g64t");
}
static void of_the_file(tiny_plan *h) {
    strcpy(h->blocks[2].slices[0].format, "file");
}

static void two_slices_a_block(void **state) {
    (void)state;
    static const wrong list[] = {
        {second_alone, "layer.1", NIB_E_USAGE},     {two_seconds, "layer.1", NIB_E_USAGE},
        {few_second_bytes, "layer.1", NIB_E_USAGE}, {moved_bytes, "layer.1", NIB_E_USAGE},
        {first_on_disk, "layer.1", NIB_E_USAGE},    {first_left_out, "layer.1", NIB_E_USAGE},
        {one_by_column, "layer.1", NIB_E_USAGE},    {of_two_levels, "layer.1", NIB_E_USAGE},
        {of_the_file, "layer.1", NIB_E_USAGE}};
    check("u4g64+u4g64", list, NUM_COUNT(list));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_slice_a_block),
                                       cmocka_unit_test(two_slices_a_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
