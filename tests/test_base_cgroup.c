/* Limits of control groups, in made-up trees of both versions. */
#include "base/cgroup.h"
#include "base/file.h"
#include "base/num.h"
#include "base/thread.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static char root[512];

static void put(const char *name, const char *text) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(path_make_folders(path, NULL), NIB_OK);
    assert_int_equal(file_write_all(path, text, strlen(text), NULL), NIB_OK);
}

/* A tree of its own: the process's path and the mounts. */
static void begin(const char *name, const char *cgroup, const char *mounts) {
    snprintf(root, sizeof root, "%s", temp_path(name));
    setenv("NIBBLE_CGROUPS", root, 1);
    put("proc/self/cgroup", cgroup);
    put("proc/self/mountinfo", mounts);
}

static const char mount_2[] =
    "22 1 0:20 / /proc rw - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
static const char mount_1[] = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                              "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                              "36 31 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

static cgroup_limits found(void) {
    cgroup_limits l;
    cgroup_limits_read(&l);
    return l;
}

static void test_none(void **state) {
    (void)state;
    begin("none", "0::/\n", mount_2);
    assert_true(found().ram == UINT64_MAX && found().n_cpu == 0);
    put("sys/fs/cgroup/memory.max", "max\n");
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_true(found().ram == UINT64_MAX && found().n_cpu == 0);
    begin("none-1", "5:memory:/\n4:cpu,cpuacct:/\n", mount_1);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_true(found().ram == UINT64_MAX && found().n_cpu == 0);
    snprintf(root, sizeof root, "%s", temp_path("nothing"));
    setenv("NIBBLE_CGROUPS", root, 1);
    assert_true(found().ram == UINT64_MAX && found().n_cpu == 0);
}

/* The smallest limit along the path, wherever it is; `high` counts as `max` does. */
static void test_nested(void **state) {
    (void)state;
    begin("nested", "0::/a/b/c\n", mount_2);
    put("sys/fs/cgroup/a/memory.max", "1073741824\n");
    put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    put("sys/fs/cgroup/a/b/memory.max", "2147483648\n");
    put("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/other/memory.max", "4096\n");
    cgroup_limits l = found();
    assert_int_equal(l.n_cpu, 2);
    assert_int_equal(l.limit, 1024 * MIB);
    assert_string_equal(l.from, "/sys/fs/cgroup/a/memory.max");
    assert_int_equal(l.ram, 1024 * MIB - 64 * MIB); /* a 16th for the kernel */
    put("sys/fs/cgroup/a/b/c/memory.high", "209715200\n");
    l = found();
    assert_string_equal(l.from, "/sys/fs/cgroup/a/b/c/memory.high");
    assert_true(l.ram > 180 * MIB && l.ram < 192 * MIB);
    put("sys/fs/cgroup/a/b/c/cpu.max", "20000 100000\n");
    assert_int_equal(found().n_cpu, 1);
    assert_int_equal(thread_physical_cores(), 1);
}

/* Memory of the group's other processes counts, its page cache does not. */
static void test_others(void **state) {
    (void)state;
    begin("others", "0::/a\n", mount_2);
    put("sys/fs/cgroup/a/memory.max", "1073741824\n");
    put("sys/fs/cgroup/a/memory.stat", "anon 536870912\nfile 402653184\nkernel 0\nshmem 134217728\n");
    const uint64_t ram = found().ram; /* this process's own bytes are among the group's */
    assert_true(ram >= 320 * MIB && ram < 450 * MIB);
    put("sys/fs/cgroup/a/memory.stat", "anon 1073741824\nfile 0\n");
    put("sys/fs/cgroup/a/memory.max", "4194304\n");
    assert_int_equal(found().ram, 1); /* nothing is left, which is not "no limit" */
}

static void test_version_1(void **state) {
    (void)state;
    begin("one", "6:cpuset:/x\n5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n",
          mount_1);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "209715200\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.stat", "rss 0\ntotal_rss 10485760\ntotal_shmem 0\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
    const cgroup_limits l = found();
    assert_int_equal(l.n_cpu, 1);
    assert_int_equal(l.limit, 200 * MIB);
    assert_true(l.ram > 170 * MIB && l.ram < 190 * MIB);
    assert_string_equal(l.from, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes");
    assert_int_equal(thread_physical_cores(), 1);
}

/* In a container the mount shows the group itself, with or without a namespace of its own. */
static void test_containers(void **state) {
    (void)state;
    static const char *const paths[] = {"0::/docker/abc\n", "0::/\n", "0::/../../elsewhere\n"};
    for (size_t i = 0; i < NUM_COUNT(paths); i++) {
        char name[32];
        snprintf(name, sizeof name, "container-%d", (int)i);
        begin(name, paths[i],
              i ? mount_2 : "31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        put("sys/fs/cgroup/memory.max", "209715200\n");
        put("sys/fs/cgroup/cpu.max", "50000 100000\n");
        assert_int_equal(found().limit, 200 * MIB);
        assert_int_equal(found().n_cpu, 1);
    }
    begin(
        "hybrid", "2:memory:/a\n0::/a\n",
        "35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory\n31 23 0:28 / /cg/two rw - cgroup2 none rw\n");
    put("cg/memory/a/memory.limit_in_bytes", "1073741824\n");
    put("cg/two/a/cpu.max", "100000 100000\n");
    assert_true(found().limit == 1024 * MIB && found().n_cpu == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_none), cmocka_unit_test(test_nested),
                                       cmocka_unit_test(test_others), cmocka_unit_test(test_version_1),
                                       cmocka_unit_test(test_containers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
