/* The inputs of products over calibration prompts: a streamed model has the bits of a resident one, reads
 * each layer once for all prompts, and does not read its output head. */
#include "measure/product_inputs.h"
#include "support/engine.h"
#include "support/prompts.h"
#include "support/sanitized.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A layer has more pages than the ring has slots. */
static const tiny_shape shape = {TYPE_Q4_1, 3, 512, 1536, 8, 4, 2048, 128, false};

static const char *path;

typedef struct seen {
    pager *p;
    pager_stats stats; /* when the pass has ended */
    uint64_t ring;
    bool streams, block_in_ring;
    int n_block, n_head_row; /* rows that the head's product reads */
    probe probe;
} seen;

static void look(void *user, const probe_input *in) {
    seen *s = user;
    if (in->block == s->n_block - 1)
        s->n_head_row += (int)in->n_row;
}

static nib_status begin(void *user, const engine_parts *e, nib_error *err) {
    seen *s = user;
    (void)err;
    const pager_need need = pager_needs(e->layout, 2);
    s->p = e->step->pager;
    s->streams = pager_streams(s->p);
    s->block_in_ring = need.block_in_ring;
    s->ring = need.ring;
    s->n_block = layout_n_block(e->layout);
    s->probe = (probe){.input = look, .user = s};
    return NIB_OK;
}

static void end(void *user) {
    seen *s = user;
    pager_get_stats(s->p, &s->stats);
}

static seen watch(uint64_t ram, const calibration *c) {
    static seen s;
    nib_engine_options o = engine_usual();
    nib_error err;
    memset(&s, 0, sizeof s);
    const product_watch how = {.begin = begin, .end = end, .probe = &s.probe, .what = "inputs", .user = &s};
    o.ram = ram;
    o.n_thread = 2;
    if (measure_product_inputs(path, &o, c, &how, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return s;
}

static void reads_once(void **state) {
    (void)state;
    calibration c = prompts_open(shape.n_vocab);
    int n_scored = 0;
    for (int i = 0; i < c.n_prompt; i++) {
        const int64_t n = c.begin[i + 1] - c.begin[i];
        n_scored += n < PRODUCTS_SCORED ? (int)n : PRODUCTS_SCORED;
    }
    const seen s = watch(NIB_AUTO, &c);
    assert_true(s.streams);
    assert_false(s.block_in_ring);
    assert_int_equal(s.n_head_row, n_scored);
    /* rows of the embedding are looked up besides */
    const uint64_t rows = (uint64_t)c.begin[c.n_prompt] * 4096;
    assert_true(s.stats.bytes_streamed <= s.stats.pass_bytes + s.ring + rows);
    const seen whole = watch((uint64_t)1 << 30, &c);
    assert_false(whole.streams);
    calibration_clear(&c);
}

/* Under a cap on RAM; where a sanitizer has memory of its own, under the next larger one that works. */
static model_imatrix measured(uint64_t ram, int n_thread, const calibration *c) {
    model_imatrix s = {0};
    nib_engine_options o = engine_usual();
    nib_error err;
    nib_status status;
    o.n_thread = n_thread;
    do {
        o.ram = ram;
        status = measure_channels(path, &o, c, &s, &err);
        ram += (uint64_t)4 << 20;
    } while (SANITIZED && status == NIB_E_NOFIT);
    if (status != NIB_OK)
        fail_msg("%s", err.message);
    return s;
}

static void has_the_bits(void **state) {
    (void)state;
    static const uint64_t caps[] = {(uint64_t)1 << 30, NIB_AUTO, (uint64_t)28 << 20};
    calibration c = prompts_open(shape.n_vocab);
    model_imatrix first = {0};
    for (int i = 0; i < 3; i++) {
        model_imatrix now = measured(caps[i], 1 + i % 2, &c);
        if (i > 0) {
            assert_int_equal(now.n_site, first.n_site);
            assert_memory_equal(now.mean, first.mean, now.first[now.n_site] * sizeof *now.mean);
            imatrix_clear(&now);
        } else {
            first = now;
        }
    }
    imatrix_clear(&first);
    calibration_clear(&c);
}

int main(void) {
    path = tiny_model("inputs.gguf", &shape);
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_once), cmocka_unit_test(has_the_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
