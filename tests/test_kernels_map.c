/* The kernel map and its file: buckets, choices against brute force, writing and reading the file, and
 * hostile files. */
#include "profile/kernel_map_file.h"
#include "support/faults.h"
#include "support/made.h"
#include "support/matrix.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const machine here = {.cpu = "a \"cpu\"",
                             .features = "avx2",
                             .n_core = 2,
                             .n_cpu = 4,
                             .l1d = 32768,
                             .l2 = 1 << 20,
                             .l3 = 1 << 25};

static kernel_map_key key_here(void) {
    return (kernel_map_key){&here, kernels_table(), 2};
}

static void every_number_of_rows_has_its_bucket(void **state) {
    (void)state;
    for (int64_t m = 1; m < 5000; m++) {
        const int b = row_bucket(m);
        assert_in_range(b, 0, ROW_BUCKETS - 1);
        assert_true(m >= row_bucket_first(b) && m <= row_bucket_last(b));
    }
    assert_int_equal(row_bucket(INT64_MAX), ROW_BUCKETS - 1);
    for (int b = 0; b < ROW_BUCKETS; b++) {
        assert_int_equal(row_bucket_by_name(row_bucket_name(b)), b);
        assert_true(b == 0 || row_bucket_first(b) == row_bucket_last(b - 1) + 1);
    }
    assert_int_equal(row_bucket_by_name("4-9"), -1);
}

/* Every packed format that files have. */
static int formats(pack_format *out) {
    int n = 0;
    for (int id = 0; id < TYPE_COUNT; id++)
        if (pack_choose((type_id)id, 256, &out[n]) && out[n].layout == PACK_TILE)
            n++;
    return n;
}

/* A map with random choices, also of strategies that cannot compute the product. */
static void random_map(kernel_map *p, const kernel_table *t, uint64_t *seed) {
    pack_format list[TYPE_COUNT];
    const int n = formats(list);
    for (int i = 0; i < n; i++)
        for (int64_t rows = 16; rows <= 48; rows += 16) {
            char name[PACK_NAME];
            kernel_map_shape *s;
            pack_name(&list[i], name);
            assert_int_equal(kernel_map_add(p, rows, 256, name, 8, &s, NULL), NIB_OK);
            s->packing = random_next(seed) % 2 ? PACK_PLANES : PACK_PARTS;
            for (int b = 0; b < ROW_BUCKETS; b++)
                if (random_next(seed) % 4)
                    s->by_bucket[b] = t->strategies[random_next(seed) % (uint64_t)t->n_strategy];
        }
}

static const strategy *brute_force(const kernel_map *p, const kernel_table *t, int64_t n, int64_t k,
                                   const pack_format *f, int64_t m) {
    char name[PACK_NAME];
    pack_name(f, name);
    for (int i = 0; i < p->n_shape; i++) {
        const kernel_map_shape *s = &p->shapes[i];
        if (s->n != n || s->k != k || strcmp(s->format, name) || s->act_bits != 8)
            continue;
        for (int b = 0; b < ROW_BUCKETS; b++)
            if (m >= row_bucket_first(b) && m <= row_bucket_last(b) && s->by_bucket[b] &&
                s->by_bucket[b]->can(f, row_bucket_first(b)) && s->by_bucket[b]->can(f, row_bucket_last(b)))
                return s->by_bucket[b];
    }
    return row_bucket_rule(t, f, row_bucket(m));
}

static void a_choice_is_what_brute_force_finds(void **state) {
    (void)state;
    pack_format list[TYPE_COUNT];
    const int n = formats(list);
    uint64_t seed = 77;
    for (int isa = 0; kernels_isa_at(isa); isa++) {
        const kernel_table *t = kernels_table_for(kernels_isa_at(isa));
        kernel_map p = {0};
        random_map(&p, t, &seed);
        for (int i = 0; i < n; i++)
            for (int64_t rows = 16; rows <= 64; rows += 16) { /* 64: a shape that the map does not have */
                kernel_choice r;
                kernel_map_choice(&p, t, rows, 256, &list[i], 8, &r);
                for (int64_t m = 1; m < 600; m += m < 20 ? 1 : 13) {
                    const strategy *s = choice_pick(&r, m);
                    assert_ptr_equal(s, brute_force(&p, t, rows, 256, &list[i], m));
                    assert_true(s->can(&list[i], m));
                }
                kernel_map_choice(&p, t, rows, 256, &list[i], 4, &r); /* other activations: the rule */
                assert_ptr_equal(choice_pick(&r, 1), row_bucket_rule(t, &list[i], 0));
            }
        kernel_map_clear(&p);
    }
}

/* The rule itself, at every number of rows: the bucket's strategy can compute them. */
static void the_rule_can_do_its_bucket(void **state) {
    (void)state;
    pack_format list[TYPE_COUNT];
    const int n = formats(list);
    for (int isa = 0; kernels_isa_at(isa); isa++)
        for (int i = 0; i < n; i++)
            for (int b = 0; b < ROW_BUCKETS; b++) {
                const strategy *s = row_bucket_rule(kernels_table_for(kernels_isa_at(isa)), &list[i], b);
                assert_true(row_bucket_can(s, &list[i], b));
            }
}

static bool same_map(const kernel_map *a, const kernel_map *b) {
    bool same = a->n_shape == b->n_shape;
    for (int i = 0; same && i < a->n_shape; i++) {
        const kernel_map_shape *x = &a->shapes[i], *y = &b->shapes[i];
        same = x->packing == y->packing && x->n == y->n && x->k == y->k && x->act_bits == y->act_bits &&
               !strcmp(x->format, y->format) && !memcmp(x->by_bucket, y->by_bucket, sizeof x->by_bucket);
    }
    return same;
}

static void a_map_comes_back_as_it_went(void **state) {
    (void)state;
    const kernel_map_key key = key_here();
    const char *path = temp_path("made/on/the/way/map.json");
    kernel_map p = {0}, q = {0};
    kernel_map_report report;
    uint64_t seed = 3;
    random_map(&p, key.table, &seed);
    assert_int_equal(kernel_map_save(path, &key, &p, NULL), NIB_OK);
    assert_int_equal(kernel_map_load(path, &key, &q, &report, NULL), NIB_OK);
    assert_string_equal(report.other, "");
    assert_int_equal(report.n_left_out, 0);
    assert_int_equal(report.n_shape, p.n_shape);
    assert_true(same_map(&p, &q));
    assert_int_equal(kernel_map_load(path, &key, &q, &report, NULL), NIB_OK); /* replaces, adds nothing */
    assert_true(same_map(&p, &q));
    kernel_map_clear(&p);
    kernel_map_clear(&q);
    assert_int_equal(kernel_map_load(temp_path("not-there.json"), &key, &q, &report, NULL), NIB_E_NOTFOUND);
}

static void another_machines_map_is_not_used(void **state) {
    (void)state;
    const kernel_map_key key = key_here();
    machine other = here;
    kernel_map p = {0}, q = {0};
    kernel_map_report report;
    uint64_t seed = 4;
    random_map(&p, key.table, &seed);
    const char *path = temp_path("map.json");
    assert_int_equal(kernel_map_save(path, &key, &p, NULL), NIB_OK);
    other.l3 *= 2;
    kernel_map_key there = key;
    there.machine = &other;
    assert_int_equal(kernel_map_load(path, &there, &q, &report, NULL), NIB_OK);
    assert_non_null(strstr(report.other, "l3"));
    there = key;
    there.n_thread = 3;
    assert_int_equal(kernel_map_load(path, &there, &q, &report, NULL), NIB_OK);
    assert_non_null(strstr(report.other, "threads"));
    there = key;
    there.table = kernels_table_for("ref");
    if (there.table != key.table) {
        assert_int_equal(kernel_map_load(path, &there, &q, &report, NULL), NIB_OK);
        assert_string_not_equal(report.other, "");
    }
    assert_int_equal(q.n_shape, 0);
    char *a = kernel_map_path(&key), *b = kernel_map_path(&there);
    assert_non_null(a);
    assert_true(there.table == key.table || strcmp(a, b)); /* each has a file of its own */
    mem_free(a);
    mem_free(b);
    kernel_map_clear(&p);
}

/* A map of this machine with the given products. */
static char *map_text(const char *products) {
    const kernel_map_key key = key_here();
    const char *path = temp_path("empty.json");
    kernel_map none = {0};
    char *all = NULL, *end;
    size_t n = 0;
    FILE *f;
    assert_int_equal(kernel_map_save(path, &key, &none, NULL), NIB_OK);
    f = fopen(path, "rb");
    assert_non_null(f);
    all = calloc(1, 8192);
    n = fread(all, 1, 4096, f);
    fclose(f);
    assert_true(n > 0);
    end = strstr(all, "\"products\"");
    assert_non_null(end);
    snprintf(end, 4096, "\"products\": %s}", products);
    return all;
}

static nib_status parse(const char *text, kernel_map *p, kernel_map_report *report) {
    const kernel_map_key key = key_here();
    nib_error err = {NIB_OK, ""};
    const nib_status status = kernel_map_parse(text, strlen(text), &key, p, report, &err);
    assert_true(status == NIB_OK || err.message[0]);
    return status;
}

static void what_is_not_understood_is_left_out(void **state) {
    (void)state;
    static const struct {
        const char *products;
        nib_status status;
        int n_shape, n_left_out;
    } cases[] = {
        {"[]", NIB_OK, 0, 0},
        {"{}", NIB_E_MODEL, 0, 0},
        {"[1]", NIB_E_MODEL, 0, 0},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a8\"}]", NIB_E_MODEL, 0, 0},
        {"[{\"n\":0,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a8\",\"rows\":{}}]", NIB_E_MODEL, 0, 0},
        {"[{\"n\":1e30,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a8\",\"rows\":{}}]", NIB_E_MODEL, 0, 0},
        {"[{\"n\":1,\"k\":1,\"format\":\"a name that is too long to be "
         "one\",\"activation\":\"a8\",\"rows\":{}}]",
         NIB_E_MODEL, 0, 0},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a16\",\"rows\":{}}]", NIB_OK, 0, 1},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a8\",\"rows\":{\"1\":\"ref/nothing\"}}]",
         NIB_OK, 1, 1},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a8\",\"rows\":{\"1\":\"ref\",\"2\":7}}]",
         NIB_OK, 1, 2},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a8\",\"rows\":{\"one\":\"ref/scalar\"}}]",
         NIB_OK, 1, 1},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a4\",\"rows\":{\"1\":\"ref/scalar\"}}]",
         NIB_OK, 1, 0},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a4\",\"packing\":\"planes\",\"rows\":{}}]",
         NIB_OK, 1, 0},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a4\",\"packing\":\"sweet\",\"rows\":{}}]",
         NIB_OK, 1, 1},
        {"[{\"n\":1,\"k\":1,\"format\":\"q4_0\",\"activation\":\"a4\",\"packing\":1,\"rows\":{}}]",
         NIB_E_MODEL, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kernel_map p = {0};
        kernel_map_report report;
        char *text = map_text(cases[i].products);
        assert_int_equal(parse(text, &p, &report), cases[i].status);
        if (cases[i].status == NIB_OK) {
            assert_int_equal(p.n_shape, cases[i].n_shape);
            assert_int_equal(report.n_left_out, cases[i].n_left_out);
        }
        kernel_map_clear(&p);
        free(text);
    }
}

/* One byte changed, or the end cut off, at every place: read, refused or another machine's; never worse. */
static void damaged_maps_do_no_harm(void **state) {
    (void)state;
    char *text = map_text("[{\"n\":16,\"k\":256,\"format\":\"q4_0\",\"activation\":\"a8\",\"rows\":{"
                          "\"1\":\"ref/scalar\",\"5-8\":\"ref/scalar\"}}]");
    const size_t n = strlen(text);
    const kernel_map_key key = key_here();
    for (size_t i = 0; i < n; i++)
        for (int how = 0; how < 3; how++) {
            kernel_map p = {0};
            kernel_map_report report;
            const char kept = text[i];
            text[i] = how == 0 ? (char)(kept ^ 1) : how == 1 ? '9' : kept;
            (void)kernel_map_parse(text, how == 2 ? i : n, &key, &p, &report, NULL);
            text[i] = kept;
            kernel_map_clear(&p);
        }
    free(text);
}

static void too_many_shapes_are_refused(void **state) {
    (void)state;
    kernel_map p = {0};
    kernel_map_shape *s;
    for (int i = 1; i <= KERNEL_MAP_MAX_SHAPES; i++)
        assert_int_equal(kernel_map_add(&p, i, 64, "q4_0", 8, &s, NULL), NIB_OK);
    assert_int_equal(kernel_map_add(&p, KERNEL_MAP_MAX_SHAPES + 1, 64, "q4_0", 8, &s, NULL), NIB_E_USAGE);
    assert_int_equal(kernel_map_add(&p, 5, 64, "q4_0", 8, &s, NULL), NIB_OK);
    assert_int_equal(s->n, 5);
    kernel_map_clear(&p);
}

static nib_status save_and_load(void *user, nib_error *err) {
    const kernel_map_key key = key_here();
    const char *path = user;
    kernel_map p = {0};
    kernel_map_shape *s;
    kernel_map_report report;
    nib_status status = kernel_map_add(&p, 16, 64, "q4_0", 8, &s, err);
    if (status == NIB_OK) {
        s->by_bucket[0] = key.table->strategies[0];
        status = kernel_map_save(path, &key, &p, err);
    }
    if (status == NIB_OK)
        status = kernel_map_load(path, &key, &p, &report, err);
    if (status == NIB_OK) {
        made_file(path);
        fault_made(p.shapes[p.n_shape - 1].by_bucket, sizeof p.shapes[0].by_bucket);
    }
    kernel_map_clear(&p);
    return status;
}

static void every_failing_allocation_and_read_is_told(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("faults.json"));
    assert_true(fault_sweep(FAULT_ALLOC, 1, save_and_load, path) > 0);
    assert_true(fault_sweep(FAULT_READ, 1, save_and_load, path) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_rows_has_its_bucket),
        cmocka_unit_test(a_choice_is_what_brute_force_finds),
        cmocka_unit_test(the_rule_can_do_its_bucket),
        cmocka_unit_test(a_map_comes_back_as_it_went),
        cmocka_unit_test(another_machines_map_is_not_used),
        cmocka_unit_test(what_is_not_understood_is_left_out),
        cmocka_unit_test(damaged_maps_do_no_harm),
        cmocka_unit_test(too_many_shapes_are_refused),
        cmocka_unit_test(every_failing_allocation_and_read_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
