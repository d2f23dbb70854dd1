/* CPUID agrees with the compiler's run time, and NIBBLE_CPU hides features from every module: this program,
 * run again under it, lists the features that it finds. */
#include "base/cpu.h"
#include "base/num.h"
#include "kernels/kernels.h"
#include "numbers/pack_isa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIST = 512 };

static const char *self;

static void add(char *list, const char *name) {
    const size_t n = strlen(list);
    snprintf(list + n, LIST - n, " %s", name);
}

/* Features, kernels and packers, as in "avx2 avx512 / ref avx2 / ref avx2". */
static void list_all(char *list) {
    list[0] = 0;
#define CPU_X(field, name, base)                                                                             \
    if (cpu_get()->field)                                                                                    \
        add(list, name);
    CPU_FEATURES(CPU_X)
#undef CPU_X
    add(list, "/");
    for (int i = 0; kernels_isa_at(i); i++)
        add(list, kernels_isa_at(i));
    add(list, "/");
    for (int i = 0; pack_isa_at(i); i++)
        add(list, pack_isa_at(i)->name);
}

static void list_under(const char *limit, char *list) {
    char command[4096 + 128];
    snprintf(command, sizeof command, "NIBBLE_CPU=%s '%s' list", limit, self);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    list[0] = 0;
    if (!fgets(list, LIST, child))
        fail_msg("%s: nothing was listed", command);
    assert_int_equal(pclose(child), 0);
}

static void as_the_compiler_finds(void **state) {
    (void)state;
    const cpu_features *f = cpu_get();
    assert_ptr_equal(f, cpu_get());
    assert_true(strlen(cpu_model_name()) > 0);
    /* features with wider registers also need the system's support for narrower ones */
    assert_true(!f->avx512 || f->avx2);
    assert_true(!f->avx512_vnni || f->avx512);
#if defined(__x86_64__)
    assert_int_equal(f->avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    assert_int_equal(f->avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
    assert_int_equal(f->avx512_vnni, __builtin_cpu_supports("avx512vnni") && f->avx512);
#endif
}

static void features_are_hidden(void **state) {
    (void)state;
    static const struct {
        const char *limit, *features[4]; /* the features that it leaves, on a processor that has them */
        const char *kernels[4], *packers[4];
    } rows[] = {
        {"x86-64", {NULL}, {"ref"}, {"ref"}},
        {"avx2", {"avx2"}, {"ref", "avx2"}, {"ref", "avx2"}},
        {"avx2,avx_vnni", {"avx2", "avx_vnni"}, {"ref", "avx2", "avxvnni"}, {"ref", "avx2"}},
        {"avx_vnni", {"avx2", "avx_vnni"}, {"ref", "avx2", "avxvnni"}, {"ref", "avx2"}},
        {"avx512", {"avx2", "avx512"}, {"ref", "avx2"}, {"ref", "avx2"}},
        {"avx512_vnni",
         {"avx2", "avx512", "avx512_vnni"},
         {"ref", "avx2", "avx512"},
         {"ref", "avx2", "avx512"}},
        {"amx_int8", {"avx2", "avx512", "amx_int8"}, {"ref", "avx2"}, {"ref", "avx2"}},
    };
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        if (!cpu_has_all(rows[i].features, NUM_COUNT(rows[i].features)))
            continue;
        char expected[LIST] = "", found[LIST];
        for (int j = 0; j < 4 && rows[i].features[j]; j++)
            add(expected, rows[i].features[j]);
        add(expected, "/");
        for (int j = 0; j < 4 && rows[i].kernels[j]; j++)
            add(expected, rows[i].kernels[j]);
        add(expected, "/");
        for (int j = 0; j < 4 && rows[i].packers[j]; j++)
            add(expected, rows[i].packers[j]);
        list_under(rows[i].limit, found);
        assert_string_equal(found, expected);
    }
}

static void nothing_is_added(void **state) {
    (void)state;
    char all[LIST], found[LIST], every[LIST];
#define CPU_X(field, name, base) "," name
    snprintf(every, sizeof every, "%s", "x86-64" CPU_FEATURES(CPU_X));
#undef CPU_X
    list_all(all);
    list_under(every, found);
    assert_string_equal(found, all);
    list_under("", found);
    assert_string_equal(found, all);
}

static void unknown_names(void **state) {
    (void)state;
    assert_null(cpu_unknown_name());
    setenv("NIBBLE_CPU", "avx2,avx,x86-64", 1);
    assert_string_equal(cpu_unknown_name(), "avx,x86-64");
    setenv("NIBBLE_CPU", "x86-64,,amx_bf16", 1);
    assert_null(cpu_unknown_name());
    unsetenv("NIBBLE_CPU");
    static const char *const none[] = {"avx"};
    assert_false(cpu_has_all(none, 1));
}

int main(int argc, char **argv) {
    if (argc > 1) {
        char list[LIST];
        list_all(list);
        return fputs(list, stdout) < 0;
    }
    /* this test begins with all features of the processor, whatever the environment says */
    unsetenv("NIBBLE_CPU");
    self = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_compiler_finds),
        cmocka_unit_test(features_are_hidden),
        cmocka_unit_test(nothing_is_added),
        cmocka_unit_test(unknown_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
