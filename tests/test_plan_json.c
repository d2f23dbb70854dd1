/* A plan as JSON: it is read back equal, and errors of hand edits are reported. */
#include "plan/plan.h"

#include "base/mem.h"
#include "support/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const plan_block blocks[] = {
    {.name = "embed",
     .activation = 8,
     .importance = -1,
     .slices = {{"file", NIB_TIER_DISK, 4096}},
     .n_slice = 1},
    {.name = "layer.0",
     .activation = 16,
     .importance = 0.75,
     .slices = {{"u4g64", NIB_TIER_RAM, 8192}, {"u4g64", NIB_TIER_DISK, 12288}},
     .n_slice = 2},
    {.name = "layer.1", .left_out = true, .activation = 8, .importance = 0},
    {.name = "head", .activation = 4, .importance = -1, .slices = {{"file", NIB_TIER_RAM, 0}}, .n_slice = 1}};

static plan sample(void) {
    plan p = {.model = "a \"model\"",
              .content = "0123456789abcdef",
              .cap = {1 << 20, NIB_AUTO, INT64_MAX},
              .mode = 'c',
              .blocks = (plan_block *)blocks,
              .n_block = 4,
              .kv = PLAN_KV_8,
              .n_ctx = 4096,
              .n_batch = 512,
              .n_prompt = 128,
              .n_gen = 64,
              .n_thread = 2,
              .packed = true,
              .predicted = {.ttft_s = 0.25,
                            .tok_s = 12.5,
                            .ram_bytes = 100,
                            .disk_bytes = 200,
                            .ram_peak = 300,
                            .quality = 0.015625,
                            .disk_s = 0.5,
                            .ram_s = 0.25,
                            .compute_s = 0.125,
                            .owner = {100, 0, 0, 0, 0, 200},
                            .disk_peak = 7},
              .binds = "disk read",
              .one_more_gb = {1.5, 0, 0},
              .alternatives = {{"all 8 bits", false, 3.5, -1, 999}},
              .n_alternative = 1,
              .notes = {"rates are guesses"},
              .n_note = 1};
    return p;
}

static char *print(const plan *p) {
    char *text = NULL;
    nib_error err = {NIB_OK, ""};
    if (plan_print(p, &text, &err))
        fail_msg("%s", err.message);
    return text;
}

static void round_trip(void **state) {
    (void)state;
    const plan p = sample();
    plan q;
    nib_error err = {NIB_OK, ""};
    char *text = print(&p);
    if (plan_parse(text, strlen(text), &q, &err))
        fail_msg("%s\n%s", err.message, text);
    char *again = print(&q);
    assert_string_equal(text, again);
    assert_string_equal(q.model, p.model);
    assert_int_equal(q.n_block, 4);
    for (int b = 0; b < 4; b++) {
        assert_string_equal(q.blocks[b].name, blocks[b].name);
        assert_int_equal(q.blocks[b].left_out, blocks[b].left_out);
        assert_int_equal(q.blocks[b].activation, blocks[b].activation);
        assert_true(q.blocks[b].importance == blocks[b].importance);
        assert_int_equal(q.blocks[b].n_slice, blocks[b].n_slice);
        assert_memory_equal(q.blocks[b].slices, blocks[b].slices, sizeof blocks[b].slices);
    }
    assert_memory_equal(q.cap, p.cap, sizeof p.cap);
    assert_memory_equal(&q.predicted, &p.predicted, sizeof p.predicted);
    assert_memory_equal(q.alternatives, p.alternatives, sizeof p.alternatives);
    assert_int_equal(q.kv, PLAN_KV_8);
    assert_int_equal(q.mode, 'c');
    assert_int_equal(q.n_ctx + q.n_batch + q.n_prompt + q.n_gen + q.n_thread, 4096 + 512 + 128 + 64 + 2);
    assert_true(q.packed);
    mem_free(text);
    mem_free(again);
    plan_clear(&q);
}

#define SHARES "\"shares\": {\"vram\": 0.0, \"ram\": 1.0, \"disk\": 0.0}"

/* Formats of keys and values by layer, and one format as a name. */
static void kv_by_layer(void **state) {
    (void)state;
    static const char text[] =
        "{\"model\": \"m\", \"blocks\": ["
        "{\"name\": \"embed\", \"activation\": \"a8\", \"slices\": [{\"format\": \"file\", \"bytes\": 1, "
        "\"tier\": \"ram\"}]},"
        "{\"name\": \"head\", \"activation\": \"a8\", \"slices\": [{\"format\": \"file\", \"bytes\": 0, "
        "\"tier\": \"disk\"}]}], \"kv\": ";
    static const char *const cases[][4] = {
        {"\"KV4\"}", "kv4", "", "[{\"layers\": \"all\", \"format\": \"kv4\", " SHARES "}]"},
        {"[{\"layers\": \"0-2\", \"format\": \"f16\"}, {\"layers\": \"3\", \"format\": \"kv4\"}]}", "f16",
         "0-2=f16,3=kv4",
         "[{\"layers\": \"0-2\", \"format\": \"f16\", " SHARES
         "}, {\"layers\": \"3\", \"format\": \"kv4\", " SHARES "}]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nib_error err = {0};
        char all[512], *again = NULL;
        plan p;
        snprintf(all, sizeof all, "%s%s", text, cases[i][0]);
        if (plan_parse(all, strlen(all), &p, &err))
            fail_msg("%s", err.message);
        assert_string_equal(plan_kv_name(p.kv), cases[i][1]);
        assert_string_equal(p.kv_layers, cases[i][2]);
        assert_int_equal(plan_print(&p, &again, NULL), NIB_OK);
        assert_non_null(strstr(again, cases[i][3]));
        mem_free(again);
        plan_clear(&p);
    }
}

/* Only the required members. */
static void min(void **state) {
    (void)state;
    static const char text[] =
        "{\"model\": \"m\", \"blocks\": ["
        "{\"name\": \"embed\", \"activation\": \"a8\", \"slices\": [{\"format\": \"file\", \"bytes\": 1, "
        "\"tier\": \"ram\"}]},"
        "{\"name\": \"head\", \"activation\": \"A16\", \"slices\": [{\"format\": \"U3G32\", \"bytes\": 0, "
        "\"tier\": \"disk\"}]}]}";
    plan p;
    nib_error err = {NIB_OK, ""};
    if (plan_parse(text, sizeof text - 1, &p, &err))
        fail_msg("%s", err.message);
    assert_true(p.cap[NIB_TIER_RAM] == NIB_AUTO);
    assert_int_equal(p.mode, 'a');
    assert_int_equal(p.kv, PLAN_KV_AUTO);
    assert_string_equal(p.blocks[1].slices[0].format, "u3g32"); /* names are read in any case */
    assert_int_equal(p.blocks[1].activation, 16);
    assert_true(p.predicted.quality < 0 && p.blocks[0].importance < 0);
    plan_clear(&p);
}

/* One edit of the sample's text, and a word that the message must have. */
static const struct {
    const char *from, *to, *says;
} mistakes[] = {
    {"\"kv\": [{\"layers\": \"all\", \"format\": \"kv8\", " SHARES "}]", "\"kv\": \"kv9\"", "kv9"},
    {"\"layers\": \"all\"", "\"layers\": \"some\"", "some"},
    {"\"kv\": [", "\"kv\": [{\"layers\": \"0\", \"format\": \"f16\"}, ", "alone"},
    {"\"format\": \"kv8\"", "\"format\": \"kv9\"", "kv9"},
    {"\"layers\": \"all\", \"format\": \"kv8\"", "\"layers\": \"2-3\", \"format\": \"auto\"", "2-3"},
    {"\"mode\": \"c\"", "\"mode\": \"d\"", "\"mode\""},
    {"\"mode\": \"c\"", "\"mode\": \"a\"", "\"mode\": expected b or c"},
    {"\"mode\": \"c\"", "\"mode\": \"b\"", "\"mode\": expected c for"},
    {"\"tier\": \"ram\"", "\"tier\": \"rams\"", "rams"},
    {"\"tier\": \"ram\"", "\"tier\": \"vram\"", "expected gpu for slices in vram"},
    {"\"tier\": \"ram\"", "\"tier\": \"disk\"", "twice"},
    {"\"tier\": \"ram\"", "\"teir\": \"ram\"", "\"teir\""},
    {"\"format\": \"u4g64\"", "\"format\": \"u4g63\"", "u4g63"},
    {"\"format\": \"u4g64\"", "\"format\": \"u6g64\"", "one format"},
    {"\"bytes\": 8192", "\"bytes\": -1", "\"bytes\""},
    {"\"bytes\": 8192", "\"bytes\": 8192.5", "\"bytes\""},
    {"\"bytes\": 8192", "\"bytes\": 9223372036854775807", "budget"},
    {"\"bytes\": 12288", "\"bytes\": \"many\"", "\"bytes\""},
    {"\"activation\": \"a16\"", "\"activation\": \"a15\"", "a15"},
    {"\"activation\": \"a16\"", "\"activations\": \"a16\"", "\"activations\""},
    {"\"importance\": 0.75", "\"importance\": 1.75", "\"importance\""},
    {"\"name\": \"layer.1\"", "\"name\": \"layer.2\"", "layer.1"},
    {"\"name\": \"embed\"", "\"name\": \"embedding\"", "embed"},
    {"\"left_out\": true", "\"left_out\": 1", "left_out"},
    {"\"left_out\": true", "\"left_out\": false", "layer.1"},
    {"\"compute\": \"cpu\"", "\"compute\": \"tpu\"", "expected cpu or gpu"},
    {"\"tok_s\": 12.5", "\"tok_s\": -1", "\"tok_s\""},
    {"\"tok_s\": 12.5", "\"tok_s\": 1e999", "JSON"},
    {"\"n_ctx\": 4096", "\"n_ctx\": 0", "\"n_ctx\""},
    {"\"n_ctx\": 4096", "\"n_ctx\": 99999999999", "\"n_ctx\""},
    {"\"kind\": \"row\"", "\"kind\": \"zigzag\"", "zigzag"},
    {"\"link\": 0", "\"link\": -5", "expected bytes"},
    {"\"weights\": 100", "\"weights\": 101", "ram_peak"},
    {"\"budget\": {", "\"budget\": {\"rom\": 1, ", "\"rom\""},
    {"\"model\": ", "\"model\": 5, \"was\": ", "model"},
    {"\"disk\": 9223372036854775807", "\"disk\": -5", "disk"},
    {"\"fits\": false", "\"fits\": null", "fits"},
    {"rates are guesses\"", "rates\", 5", "notes"},
};

/* Slices of one block, also ones that are no stack, and a word that the message must have. */
static void kinds_of_slices(void **state) {
    (void)state;
    static const struct {
        const char *slices[4], *says;
    } cases[] = {
        {{"u4g64", "+u4g64"}, NULL},
        {{"u4g64w", "+u3g32w"}, NULL},
        {{"u4g64", "+u4g64", "+u2g64"}, "found u4g64, +u4g64, +u2g64"},
        {{"u4g64", "u3g64"}, "found u4g64, u3g64"},
        {{"u4g64", "u3g64", "+u4g64", "+u2g64"}, "found u4g64, u3g64, +u4g64, +u2g64"},
        {{"file", "+u4g64"}, "found file, +u4g64"},
        {{"+u4g64"}, "found +u4g64"},
        {{"u4g64w", "+u4g64"}, "found u4g64w, +u4g64"},
        {{"u4g64+u4g64"}, "uniform format"},
        {{"u4g64", "++u4g64"}, "uniform format"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        int n = sprintf(text, "{\"model\": \"m\", \"mode\": \"a\", \"blocks\": [");
        for (int b = 0; b < 2; b++) {
            n += sprintf(text + n, "{\"name\": \"%s\", \"activation\": \"a8\", \"slices\": [",
                         b ? "head" : "embed");
            for (int s = 0; s < 4 && cases[i].slices[s]; s++)
                n += sprintf(text + n, "%s{\"format\": \"%s\", \"bytes\": 64, \"tier\": \"disk\"}",
                             s ? ", " : "", cases[i].slices[s]);
            n += sprintf(text + n, b ? "]}]}" : "]}, ");
        }
        plan p;
        nib_error err = {NIB_OK, ""};
        const nib_status status = plan_parse(text, (size_t)n, &p, &err);
        if (status != (cases[i].says ? NIB_E_MODEL : NIB_OK) ||
            (cases[i].says && !strstr(err.message, cases[i].says)))
            fail_msg("%s: %d \"%s\"", text, status, err.message);
        if (status == NIB_OK)
            plan_clear(&p);
    }
}

static char *edited(const char *text, const char *from, const char *to) {
    char *out = malloc(strlen(text) + strlen(to) + 1);
    size_t at = 0;
    while (text[at] && strncmp(text + at, from, strlen(from)) != 0)
        at++;
    if (!text[at] || !out)
        fail_msg("%s is not in the sample", from);
    sprintf(out, "%.*s%s%s", (int)at, text, to, text + at + strlen(from));
    return out;
}

static void hand_edits(void **state) {
    (void)state;
    const plan p = sample();
    char *text = print(&p);
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        nib_error err = {NIB_OK, ""};
        plan q;
        char *wrong = edited(text, mistakes[i].from, mistakes[i].to);
        if (plan_parse(wrong, strlen(wrong), &q, &err) != NIB_E_MODEL ||
            !strstr(err.message, mistakes[i].says))
            fail_msg("%s -> %s: \"%s\" does not say \"%s\"", mistakes[i].from, mistakes[i].to, err.message,
                     mistakes[i].says);
        free(wrong);
    }
    mem_free(text);
}

/* Truncated anywhere, or without any one byte: refused or read, without a crash (the sanitizers check). */
static void damage(void **state) {
    (void)state;
    const plan p = sample();
    char *text = print(&p), *copy = malloc(strlen(text) + 1);
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        plan q;
        if (i + 3 < n)
            assert_int_not_equal(plan_parse(text, i, &q, NULL), NIB_OK);
        memcpy(copy, text, n + 1);
        memmove(copy + i, copy + i + 1, n - i);
        if (plan_parse(copy, n - 1, &q, NULL) == NIB_OK)
            plan_clear(&q);
    }
    free(copy);
    mem_free(text);
}

static void numbers_without_json(void **state) {
    (void)state;
    char *text = NULL;
    plan p = sample();
    p.predicted.tok_s = 0.0 / 0.0;
    assert_int_equal(plan_print(&p, &text, NULL), NIB_E_FAILED);
    p = sample();
    p.predicted.ram_peak = UINT64_MAX;
    assert_int_equal(plan_print(&p, &text, NULL), NIB_E_FAILED);
    assert_null(text);
}

static nib_status there_and_back(void *user, nib_error *err) {
    plan q;
    char *again;
    NIB_TRY(plan_parse(user, strlen(user), &q, err));
    nib_status status = plan_print(&q, &again, err);
    if (status == NIB_OK) {
        fault_made(again, strlen(again));
        mem_free(again);
    }
    plan_clear(&q);
    return status;
}

static void no_memory(void **state) {
    (void)state;
    const plan p = sample();
    char *text = print(&p);
    assert_true(fault_sweep(FAULT_ALLOC, 1, there_and_back, text) > 1);
    mem_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),      cmocka_unit_test(min),
        cmocka_unit_test(kv_by_layer),     cmocka_unit_test(hand_edits),
        cmocka_unit_test(kinds_of_slices), cmocka_unit_test(damage),
        cmocka_unit_test(no_memory),       cmocka_unit_test(numbers_without_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
