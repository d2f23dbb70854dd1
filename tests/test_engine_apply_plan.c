/* An engine follows a plan: formats and activations of each block, layers left out, resident pages; the same
 * answers for every cap. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/imatrix.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "support/tinyplan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 40 };

static const tiny_shape tied = {TYPE_F16, 4, 192, 320, 6, 2, 512, 128, true};
static const tiny_shape untied = {TYPE_Q8_0, 6, 256, 768, 8, 2, 2048, 128, false};

/* ---- plans ---- */

/* All blocks in RAM in the formats of the list, in turn. */
static void make_plan(tiny_plan *h, const char *path, const char *const *formats, int n_format) {
    tiny_plan_make(h, path, formats, n_format, NIB_TIER_RAM, NIB_TIER_RAM);
}

static void as_file(tiny_plan *h, const char *path) {
    make_plan(h, path, (const char *const[]){"file"}, 1);
}

/* ---- engines ---- */

static char said[1024];

static void keep_log(void *user, const char *line) {
    (void)user;
    if (strlen(said) + strlen(line) + 2 < sizeof said) {
        strcat(said, line);
        strcat(said, "\n");
    }
}

static nib_engine_options usual(void) {
    nib_engine_options o = engine_usual();
    o.log = keep_log;
    said[0] = '\0';
    return o;
}

static logits_rows forward_on(nib_engine *e) {
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, nib_engine_info(e)->n_vocab, 1);
    return logits_of(e, tokens, N_TOKEN);
}

static logits_rows forward(const char *path, const nib_engine_options *o, const plan *p) {
    nib_engine *e = engine_must_open(path, o, p);
    logits_rows r = forward_on(e);
    nib_engine_close(e);
    return r;
}

/* ---- tests ---- */

static const char *const mixed[] = {"file", "u4g64", "u8g128", "u3g32a", "u6g32"};

/* nib_engine_placement agrees with the plan. */
static void formats_per_block(void **state) {
    (void)state;
    const tiny_shape *shapes[] = {&tied, &untied};
    for (int i = 0; i < 2; i++) {
        const char *path = tiny_model("m.gguf", shapes[i]);
        const nib_slice *s;
        tiny_plan h;
        make_plan(&h, path, mixed, 5);
        const nib_engine_options o = usual();
        nib_engine *e = engine_must_open(path, &o, &h.p);
        size_t n = nib_engine_placement(e, &s), n_block = 0, n_as_planned = 0;
        for (size_t j = 0; j < n; j++) {
            n_block += j == 0 || strcmp(s[j].block, s[j - 1].block) != 0;
            for (int b = 0; b < h.p.n_block; b++)
                if (!strcmp(s[j].block, h.blocks[b].name))
                    n_as_planned += !strcmp(s[j].format, h.blocks[b].slices[0].format) ||
                                    !strcmp(s[j].format, type_get(shapes[i]->type)->name);
        }
        assert_int_equal(n_block, h.p.n_block);
        assert_true((int)n_as_planned >= h.p.n_block - shapes[i]->tied);
        assert_non_null(strstr(said, "weights are rounded"));
        assert_null(strstr(said, "missing"));
        nib_engine_close(e);
    }
}

/* A plan with the file's formats changes nothing; other formats change the answers a little. */
static void rounding_is_felt(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &tied);
    const nib_engine_options o = usual();
    tiny_plan h;
    logits_rows plain = forward(path, &o, NULL);
    as_file(&h, path);
    logits_rows same = forward(path, &o, &h.p);
    assert_memory_equal(plain.data, same.data, logits_bytes(&plain));
    assert_string_equal(said, "");
    make_plan(&h, path, (const char *const[]){"u8g32"}, 1);
    logits_rows near = forward(path, &o, &h.p);
    make_plan(&h, path, (const char *const[]){"u3g64"}, 1);
    logits_rows far = forward(path, &o, &h.p);
    double off_near = 0, off_far = 0;
    for (int64_t i = 0; i < N_TOKEN * plain.n_vocab; i++) {
        off_near += (double)((near.data[i] - plain.data[i]) * (near.data[i] - plain.data[i]));
        off_far += (double)((far.data[i] - plain.data[i]) * (far.data[i] - plain.data[i]));
    }
    assert_true(off_near > 0 && off_near < off_far / 100);
    free(plain.data);
    free(same.data);
    free(near.data);
    free(far.data);
}

/* A rotated format is the same matrix: it is as near as the format that is not rotated. Both are rounded, so
 * that they differ. */
static void rotated_is_near(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &tied);
    nib_engine_options o = usual();
    tiny_plan h;
    double off[2] = {0, 0};
    o.activation = 16;
    logits_rows plain = forward(path, &o, NULL);
    for (int i = 0; i < 2; i++) {
        make_plan(&h, path, (const char *const[]){i ? "u8g32h" : "u8g32"}, 1);
        logits_rows r = forward(path, &o, &h.p);
        for (int64_t k = 0; k < N_TOKEN * plain.n_vocab; k++)
            off[i] += (double)((r.data[k] - plain.data[k]) * (r.data[k] - plain.data[k]));
        free(r.data);
    }
    assert_true(off[0] > 0 && off[1] > 0 && off[1] < 4 * off[0]);
    free(plain.data);
}

/* Means of a model's channels, all 1 or some of them large, stored where an engine looks for them. */
static void keep_columns(const char *path, bool alike) {
    const logger silent = {0};
    model *m = NULL;
    nib_error err = {0};
    model_sites sites;
    model_imatrix c;
    assert_int_equal(model_open(path, &silent, &m, &err), NIB_OK);
    assert_int_equal(sites_open(&sites, m, &err), NIB_OK);
    assert_int_equal(imatrix_begin(&c, sites.k, sites.n_site, &err), NIB_OK);
    assert_int_equal(container_content_key(model_container(m), c.content, &err), NIB_OK);
    strcpy(c.prompts, "abc");
    for (uint64_t i = 0; i < c.first[c.n_site]; i++)
        c.mean[i] = alike || i % 13 ? 1 : 500;
    char *to = imatrix_path(c.content, c.prompts);
    assert_int_equal(imatrix_save(to, &c, &err), NIB_OK);
    mem_free(to);
    imatrix_clear(&c);
    sites_close(&sites);
    model_close(m);
}

/* Weighted formats are rounded by the stored means of channels: a packed file that was made with other means
 * is not used. */
static void rounded_by_channels(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &tied);
    char *folder = mem_strdup(path);
    nib_engine_options o = usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    tiny_plan h;
    *strrchr(folder, '/') = '\0';
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    make_plan(&h, path, (const char *const[]){"u4g64"}, 1);
    logits_rows plain = forward(path, &o, &h.p);
    make_plan(&h, path, (const char *const[]){"u4g64w"}, 1);
    assert_int_equal(engine_open(path, &o, &(engine_internal){.plan = &h.p}, &e, &err), NIB_E_NOTFOUND);
    assert_non_null(strstr(err.message, "--costs"));
    keep_columns(path, true);
    strcpy(h.p.prompts, "abd");
    assert_int_equal(engine_open(path, &o, &(engine_internal){.plan = &h.p}, &e, &err), NIB_E_NOTFOUND);
    strcpy(h.p.prompts, "abc");
    o.packed = NIB_PACKED_ON;
    logits_rows alike = forward(path, &o, &h.p);
    assert_memory_equal(plain.data, alike.data, logits_bytes(&plain));
    keep_columns(path, false);
    logits_rows kept = forward(path, &o, &h.p);
    o.packed = NIB_PACKED_OFF;
    h.p.prompts[0] = '\0'; /* the latest */
    logits_rows got = forward(path, &o, &h.p);
    assert_memory_equal(got.data, kept.data, logits_bytes(&got));
    assert_memory_not_equal(plain.data, got.data, logits_bytes(&plain));
    unsetenv("XDG_CACHE_HOME");
    free(plain.data);
    free(alike.data);
    free(kept.data);
    free(got.data);
    mem_free(folder);
}

/* Activations of each block: if all are equal, the logits are those of the option; one block with others
 * changes them. */
static void activations_per_block(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &untied);
    nib_engine_options o = usual();
    tiny_plan h;
    logits_rows by_option, by_plan;
    static const int bits[] = {4, 8, 16};
    for (int i = 0; i < 3; i++) {
        o.activation = bits[i];
        by_option = forward(path, &o, NULL);
        o.activation = 0;
        as_file(&h, path);
        for (int b = 0; b < h.p.n_block; b++)
            h.blocks[b].activation = bits[i];
        by_plan = forward(path, &o, &h.p);
        assert_memory_equal(by_option.data, by_plan.data, logits_bytes(&by_option));
        free(by_plan.data);
        h.blocks[3].activation = bits[(i + 1) % 3];
        by_plan = forward(path, &o, &h.p);
        assert_memory_not_equal(by_option.data, by_plan.data, logits_bytes(&by_option));
        free(by_plan.data);
        free(by_option.data);
    }
}

static void left_out_is_not_there(void **state) {
    (void)state;
    static const unsigned masks[] = {1u << 2, 1u << 0 | 1u << 3, 1u << 5, 0x1e};
    const nib_engine_options o = usual();
    for (size_t i = 0; i < NUM_COUNT(masks); i++) {
        const char *whole = tiny_model("m.gguf", &untied);
        const char *part = tiny_model_without("part.gguf", &untied, masks[i]);
        tiny_plan h;
        as_file(&h, whole);
        for (int l = 0; l < untied.n_layer; l++)
            if (masks[i] >> l & 1)
                tiny_plan_leave_out(&h, l);
        logits_rows want = forward(part, &o, NULL);
        said[0] = '\0';
        logits_rows got = forward(whole, &o, &h.p);
        assert_non_null(strstr(said, "layers are missing"));
        assert_memory_equal(want.data, got.data, logits_bytes(&want));
        free(want.data);
        free(got.data);
    }
}

/* The blocks' matrices are where the plan says; vectors (a few KB) are always in RAM. */
static void check_residence(const nib_engine *e, const tiny_plan *h) {
    const nib_slice *s;
    size_t n = nib_engine_placement(e, &s);
    for (int b = 0; b < h->p.n_block; b++) {
        const plan_block *pb = &h->blocks[b];
        uint64_t planned = pb->n_slice ? pb->slices[0].bytes : 0, on_disk = 0;
        for (size_t i = 0; i < n; i++)
            if (!strcmp(s[i].block, pb->name) && s[i].tier == NIB_TIER_DISK)
                on_disk += s[i].bytes;
        if (pb->slices[0].tier == NIB_TIER_DISK)
            assert_in_range(on_disk, planned * 9 / 10, planned);
        else
            assert_int_equal(on_disk, 0);
    }
}

/* One precision, any cap and any residence: the same bits. */
static void same_for_every_cap(void **state) {
    (void)state;
    process_counted();
    const char *path = tiny_model("m.gguf", &untied);
    nib_engine_options o = usual();
    nib_memory m;
    tiny_plan h;
    make_plan(&h, path, mixed, 5);
    tiny_plan_leave_out(&h, 1);
    h.blocks[3].activation = 16;
    logits_rows want = forward(path, &o, &h.p);
    const uint64_t headroom = tiny_model_half_bytes(path);
    for (int i = 0; i < 5; i++) {
        tiny_plan part = h;
        part.p.blocks = part.blocks;
        part.p.cap[NIB_TIER_RAM] = i < 4 ? process_bytes() + headroom : NIB_AUTO;
        for (int b = 0; b < part.p.n_block; b++) /* all but every fourth, or all */
            if (part.blocks[b].n_slice && (i == 4 || b % 4 != i))
                part.blocks[b].slices[0].tier = NIB_TIER_DISK;
        nib_engine *e = engine_must_open(path, &o, &part.p);
        logits_rows got = forward_on(e);
        nib_engine_memory(e, &m);
        assert_true(m.tier[NIB_TIER_RAM].cap == part.p.cap[NIB_TIER_RAM]);
        assert_true(m.tier[NIB_TIER_RAM].peak <= m.tier[NIB_TIER_RAM].cap);
        check_residence(e, &part);
        assert_memory_equal(want.data, got.data, logits_bytes(&want));
        nib_engine_close(e);
        free(got.data);
    }
    free(want.data);
}

static void sizes_are_the_plans(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &tied);
    nib_engine_options o = usual();
    tiny_plan h;
    nib_error err = {0};
    nib_engine *e = NULL;
    as_file(&h, path);
    h.p.n_ctx = 50;
    h.p.n_batch = 7;
    h.p.kv = PLAN_KV_F32;
    e = engine_must_open(path, &o, &h.p);
    assert_int_equal(engine_parts_of(e).n_ctx, 50);
    assert_int_equal(engine_parts_of(e).step->backend->rows.n_pass, 7);
    assert_int_equal(engine_parts_of(e).kv.type, TYPE_F32);
    nib_engine_close(e);
    o.n_ctx = 51;
    assert_int_equal(engine_open(path, &o, &(engine_internal){.plan = &h.p}, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "51"));
    o.n_ctx = 40;
    o.kv_type = NIB_KV_F16;
    e = engine_must_open(path, &o, &h.p);
    assert_int_equal(engine_parts_of(e).n_ctx, 50);
    assert_int_equal(engine_parts_of(e).kv.type, TYPE_F16);
    assert_non_null(strstr(said, "cache"));
    nib_engine_close(e);
}

/* From its text, as a program passes it. */
static void from_json(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &tied);
    nib_engine_options o = usual();
    nib_error err = {0};
    nib_engine *e = NULL;
    char *text = NULL;
    tiny_plan h;
    make_plan(&h, path, mixed, 5);
    assert_int_equal(plan_print(&h.p, &text, &err), NIB_OK);
    logits_rows want = forward(path, &o, &h.p);
    o.plan = text;
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_OK);
    logits_rows got = forward_on(e);
    assert_memory_equal(want.data, got.data, logits_bytes(&want));
    nib_engine_close(e);
    o.plan = "{";
    assert_int_not_equal(nib_engine_open(path, &o, &e, &err), NIB_OK);
    nib_free(text);
    free(want.data);
    free(got.data);
}

/* Weights that are rounded again for each token are reported as slow, with the remedy; not if a packed file
 * is used.
 */
static void rounding_while_streaming(void **state) {
    (void)state;
    const char *path = tiny_model("m.gguf", &untied);
    nib_engine_options o = usual();
    tiny_plan h;
    make_plan(&h, path, (const char *const[]){"file", "u4g64"}, 2);
    nib_engine_close(engine_must_open(path, &o, &h.p));
    assert_null(strstr(said, "slow"));
    for (int b = 0; b < h.p.n_block; b++)
        h.blocks[b].slices[0].tier = NIB_TIER_DISK;
    nib_engine_close(engine_must_open(path, &o, &h.p));
    assert_non_null(strstr(said, "slow"));
    assert_non_null(strstr(said, "--packed-cache on"));
    o = usual();
    o.packed = NIB_PACKED_ON;
    o.scratch = temp_path("scratch");
    nib_engine_close(engine_must_open(path, &o, &h.p));
    assert_null(strstr(said, "slow"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_per_block),        cmocka_unit_test(rounding_is_felt),
        cmocka_unit_test(rotated_is_near),          cmocka_unit_test(rounded_by_channels),
        cmocka_unit_test(activations_per_block),    cmocka_unit_test(left_out_is_not_there),
        cmocka_unit_test(same_for_every_cap),       cmocka_unit_test(sizes_are_the_plans),
        cmocka_unit_test(rounding_while_streaming), cmocka_unit_test(from_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
