/* nib_engine_placement agrees with the ledger: every weight byte once, in the tier where it is. */
#include "nib.h"
#include "support/process.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const tiny_shape tied = {TYPE_Q8_0, 8, 256, 768, 8, 2, 8192, 128, true};
static const tiny_shape untied = {TYPE_Q4_1, 6, 320, 1024, 4, 4, 8192, 128, false};

static nib_engine *open_engine(const char *path, uint64_t ram, bool vocab_only) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.ram = ram;
    o.stream = true;
    o.vocab_only = vocab_only;
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    return e;
}

/* Sums by tier; asserts the order of the blocks, and that no pair of format and tier is repeated in a block.
 */
static void sum(const nib_engine *e, int64_t n_layer, uint64_t bytes[NIB_N_TIER]) {
    const nib_slice *s;
    size_t n = nib_engine_placement(e, &s);
    int64_t seen = 0;
    memset(bytes, 0, NIB_N_TIER * sizeof *bytes);
    assert_true(n > 0);
    assert_string_equal(s[0].block, "embed");
    assert_string_equal(s[n - 1].block, "head");
    for (size_t i = 0; i < n; i++) {
        bytes[s[i].tier] += s[i].bytes;
        assert_true(s[i].bytes > 0);
        if (s[i].layer >= 0 && (i == 0 || s[i - 1].layer != s[i].layer))
            assert_int_equal(s[i].layer, seen++);
        for (size_t j = i + 1; j < n && !strcmp(s[j].block, s[i].block); j++)
            assert_false(s[j].tier == s[i].tier && !strcmp(s[j].format, s[i].format));
    }
    assert_int_equal(seen, n_layer);
}

/* The ledger has whole pages. */
static void check_ram(uint64_t bytes, const nib_memory *mem) {
    assert_in_range(bytes, mem->owner[NIB_OWNER_WEIGHTS] * 9 / 10, mem->owner[NIB_OWNER_WEIGHTS]);
}

static void check_shape(const tiny_shape *shape) {
    const char *path = tiny_model("placed.gguf", shape);
    uint64_t whole[NIB_N_TIER], part[NIB_N_TIER];
    nib_memory mem;
    const nib_slice *s;
    nib_engine *e = open_engine(path, NIB_AUTO, false);
    sum(e, shape->n_layer, whole);
    nib_engine_memory(e, &mem);
    assert_int_equal(whole[NIB_TIER_DISK], 0);
    check_ram(whole[NIB_TIER_RAM], &mem);
    nib_engine_placement(e, &s);
    assert_int_equal(s[0].also != NULL, shape->tied);
    nib_engine_close(e);
    uint64_t headroom = tiny_model_half_bytes(path);
    e = open_engine(path, process_bytes() + headroom, false);
    sum(e, shape->n_layer, part);
    nib_engine_memory(e, &mem);
    assert_true(part[NIB_TIER_DISK] > 0);
    check_ram(part[NIB_TIER_RAM], &mem);
    /* a matrix in parts of rows is rounded up to 64 bytes in each */
    assert_in_range(part[NIB_TIER_RAM] + part[NIB_TIER_DISK], whole[NIB_TIER_RAM] - 64 * 100,
                    whole[NIB_TIER_RAM] + 64 * 100);
    nib_engine_close(e);
}

static void every_byte_once(void **state) {
    (void)state;
    process_counted();
    check_shape(&tied);
    check_shape(&untied);
}

static void nothing_without_weights(void **state) {
    (void)state;
    const nib_slice *s;
    nib_engine *e = open_engine(tiny_model("placed.gguf", &untied), NIB_AUTO, true);
    assert_int_equal(nib_engine_placement(e, &s), 0);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_once),
        cmocka_unit_test(nothing_without_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
