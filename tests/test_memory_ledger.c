/* The ledger: refusals, reports, and the runtime owner, which agrees with the system. */
#include "base/mem.h"
#include "support/process.h"
#include "memory/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static ledger *open_with(uint64_t ram) {
    const uint64_t caps[NIB_N_TIER] = {ram, NIB_AUTO, NIB_AUTO};
    ledger *l = NULL;
    nib_error err;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_OK);
    return l;
}

static void refuses_what_does_not_fit(void **state) {
    (void)state;
    nib_error err = {0};
    ledger *l = open_with(200 * MIB);
    uint64_t left = ledger_free(l, PLACE_RAM);
    assert_true(left < 200 * MIB && left > 100 * MIB);
    assert_int_equal(ledger_charge(l, PLACE_RAM, NIB_OWNER_KV, left + 1, &err), NIB_E_NOFIT);
    assert_non_null(strstr(err.message, "kv"));
    assert_non_null(strstr(err.message, "200.0 MiB"));
    assert_int_equal(ledger_free(l, PLACE_RAM), left);
    assert_int_equal(ledger_charge(l, PLACE_RAM, NIB_OWNER_KV, left, &err), NIB_OK);
    assert_int_equal(ledger_free(l, PLACE_RAM), 0);
    assert_int_equal(ledger_charge(l, PLACE_RAM, NIB_OWNER_TABLES, UINT64_MAX, &err), NIB_E_NOFIT);
    ledger_release(l, PLACE_RAM, NIB_OWNER_KV, left);
    assert_int_equal(ledger_free(l, PLACE_RAM), left);
    ledger_close(l);
}

static void a_cap_below_the_process_is_refused(void **state) {
    (void)state;
    const uint64_t caps[NIB_N_TIER] = {1 << 16, NIB_AUTO, NIB_AUTO};
    ledger *l = NULL;
    nib_error err;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_E_NOFIT);
    assert_null(l);
}

static void promised_is_not_yet_resident(void **state) {
    (void)state;
    nib_memory before, after;
    ledger *l = open_with(NIB_AUTO);
    assert_true(ledger_free(l, PLACE_RAM) == NIB_AUTO);
    ledger_report(l, &before);
    assert_int_equal(ledger_reserve(l, PLACE_RAM, NIB_OWNER_KV, 64 * MIB, NULL), NIB_OK);
    ledger_touch(l, PLACE_RAM, NIB_OWNER_KV, 10 * MIB);
    ledger_report(l, &after);
    assert_int_equal(after.tier[NIB_TIER_RAM].peak, before.tier[NIB_TIER_RAM].peak + 10 * MIB);
    assert_int_equal(after.owner[NIB_OWNER_KV], 10 * MIB);
    ledger_unreserve(l, PLACE_RAM, NIB_OWNER_KV, 64 * MIB, 10 * MIB);
    ledger_report(l, &after);
    assert_int_equal(after.owner[NIB_OWNER_KV], 0);
    ledger_close(l);
}

static void the_peak_is_the_systems(void **state) {
    (void)state;
    nib_memory m;
    process_measured();
    ledger *l = open_with(NIB_AUTO);
    assert_int_equal(ledger_charge(l, PLACE_RAM, NIB_OWNER_WEIGHTS, 48 * MIB, NULL), NIB_OK);
    uint8_t *p = mem_map(48 * MIB);
    assert_non_null(p);
    memset(p, 1, 48 * MIB);
    ledger_measure_runtime(l, false);
    ledger_report(l, &m);
    assert_true(m.rss_peak > 48 * MIB);
    uint64_t peak = m.tier[NIB_TIER_RAM].peak;
    uint64_t gap = peak > m.rss_peak ? peak - m.rss_peak : m.rss_peak - peak;
    assert_true(gap < 4 * MIB);
    mem_unmap(p, 48 * MIB);
    ledger_close(l);
}

/* Memory of no other owner belongs to the runtime. */
static void the_runtime_is_the_rest(void **state) {
    (void)state;
    nib_memory m;
    process_counted();
    ledger *l = open_with(NIB_AUTO);
    uint64_t before = ledger_process_usage().now;
    assert_int_equal(ledger_charge(l, PLACE_RAM, NIB_OWNER_WEIGHTS, 3 * MIB, NULL), NIB_OK);
    uint8_t *weights = mem_map(3 * MIB), *other = mem_map_sparse(2 * MIB);
    memset(weights, 1, 3 * MIB);
    memset(other, 1, MIB); /* the rest is not touched, so it is not resident */
    ledger_measure_runtime(l, false);
    ledger_report(l, &m);
    assert_int_equal(m.owner[NIB_OWNER_RUNTIME], before + MIB);
    assert_int_equal(m.tier[NIB_TIER_RAM].peak, before + 4 * MIB);
    mem_unmap(weights, 3 * MIB);
    mem_unmap(other, 2 * MIB);
    ledger_report(l, &m);
    assert_int_equal(m.rss_peak, before + 4 * MIB);
    assert_int_equal(ledger_process_usage().now, before);
    ledger_close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_does_not_fit),    cmocka_unit_test(a_cap_below_the_process_is_refused),
        cmocka_unit_test(promised_is_not_yet_resident), cmocka_unit_test(the_peak_is_the_systems),
        cmocka_unit_test(the_runtime_is_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
