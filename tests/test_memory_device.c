/* Every kind of device keeps the contract of memory/device.h: memory, copies in lanes, marks; and regions,
 * which are charged before they are taken. A kind whose device is not there is left out. */
#include "base/mem.h"
#include "base/num.h"
#include "memory/region.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_BYTE = 300000 };
static const uint64_t caps[NIB_N_TIER] = {64 << 20, 64 << 20, 64 << 20};

/* Calls `check` for each device of this machine. */
static int for_each_device(void (*check)(device *)) {
    int n = 0;
    memory_places places = places_of(caps);
    for (int i = 0; i < PLACES; i++)
        for (places.of[i].index = 0;; places.of[i].index++, n++) {
            device *d = NULL;
            nib_error err;
            const nib_status status = device_open(&places, i, &d, &err);
            if (status == NIB_E_NOTFOUND)
                break;
            assert_int_equal(status, NIB_OK);
            assert_int_equal(d->kind->tier, places.of[i].kind);
            assert_int_equal(d->place, i);
            check(d);
            device_close(d);
        }
    return n;
}

static void check_info(device *d) {
    device_info info;
    d->kind->info(d, &info);
    assert_true(info.name[0]);
    assert_true(info.free <= info.bytes);
    assert_true(info.host_reads || d->kind->tier != NIB_TIER_RAM);
}

static void devices_say_what_they_are(void **state) {
    (void)state;
    assert_true(for_each_device(check_info) >= 1); /* the host */
    device_close(NULL);
}

static void what_is_not_there_is_said(void **state) {
    (void)state;
    device *d = NULL;
    nib_error err;
    memory_places places = places_of(caps);
    assert_int_equal(device_open(&places, PLACE_DISK, &d, &err), NIB_E_NOTFOUND);
    assert_non_null(strstr(err.message, "disk"));
    places.of[PLACE_RAM].index = 1;
    assert_int_equal(device_open(&places, PLACE_RAM, &d, &err), NIB_E_NOTFOUND);
    assert_null(d);
}

/* Through all lanes and back, each after the one before. */
static void check_copies(device *d) {
    nib_error err;
    uint8_t *host = mem_alloc(N_BYTE);
    void *at[2];
    device_mark mark;
    assert_non_null(host);
    for (int i = 0; i < N_BYTE; i++)
        host[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(d->kind->pin(d, host, N_BYTE, &err), NIB_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(d->kind->alloc(d, N_BYTE, i == 1, &at[i], &err), NIB_OK);
        assert_int_equal((uintptr_t)at[i] % 4096, 0);
    }
    assert_int_equal(d->kind->copy(d, DEVICE_LOAD_WEIGHTS, at[0], host, N_BYTE, &err), NIB_OK);
    assert_int_equal(d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &mark, &err), NIB_OK);
    assert_int_equal(d->kind->follow(d, DEVICE_COMPUTE, mark, &err), NIB_OK);
    assert_int_equal(d->kind->copy(d, DEVICE_COMPUTE, at[1], at[0], N_BYTE, &err), NIB_OK);
    assert_int_equal(d->kind->mark(d, DEVICE_COMPUTE, &mark, &err), NIB_OK);
    assert_int_equal(d->kind->wait(d, mark, &err), NIB_OK);
    memset(host, 0, N_BYTE);
    assert_int_equal(d->kind->follow(d, DEVICE_STORE, mark, &err), NIB_OK);
    assert_int_equal(d->kind->copy(d, DEVICE_STORE, host, at[1], N_BYTE, &err), NIB_OK);
    assert_int_equal(d->kind->mark(d, DEVICE_STORE, &mark, &err), NIB_OK);
    assert_int_equal(d->kind->wait(d, mark, &err), NIB_OK);
    for (int i = 0; i < N_BYTE; i++)
        assert_int_equal(host[i], (uint8_t)(i * 7 + i / 251));
    for (int i = 0; i < 2; i++)
        d->kind->free(d, at[i], N_BYTE);
    d->kind->unpin(d, host, N_BYTE);
    mem_free(host);
}

static void copies_arrive_in_order(void **state) {
    (void)state;
    for_each_device(check_copies);
}

static void check_regions(device *d) {
    const int at = d->place;
    ledger *l;
    memory_region r, sparse;
    nib_error err;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_OK);
    const uint64_t before = ledger_promised(l, at);
    assert_int_equal(memory_region_open(&r, d, l, NIB_OWNER_KV, N_BYTE, false, "a test", &err), NIB_OK);
    assert_int_equal(ledger_promised(l, at), before + N_BYTE);
    assert_int_equal(r.touched, N_BYTE);
    assert_int_equal(memory_region_open(&sparse, d, l, NIB_OWNER_KV, N_BYTE, true, "a test", &err), NIB_OK);
    assert_int_equal(sparse.touched, 0);
    memory_region_touch(&sparse, 1000);
    memory_region_touch(&sparse, 500); /* touched memory stays resident */
    assert_int_equal(sparse.touched, 1000);
    memory_region_touch(&sparse, 2 * N_BYTE);
    assert_int_equal(sparse.touched, N_BYTE);
    memory_region_close(&sparse);
    memory_region_close(&sparse); /* nothing the second time */
    memory_region_close(&r);
    assert_int_equal(ledger_promised(l, at), before);
    assert_int_equal(memory_region_open(&r, d, l, NIB_OWNER_KV, caps[d->kind->tier], false, "a test", &err),
                     at == PLACE_RAM ? NIB_E_NOFIT : NIB_OK);
    memory_region_close(&r);
    assert_int_equal(ledger_promised(l, at), before);
    ledger_close(l);
}

static void regions_are_charged_and_released(void **state) {
    (void)state;
    for_each_device(check_regions);
}

static void no_memory_gives_the_charge_back(void **state) {
    (void)state;
    ledger *l;
    memory_region r;
    nib_error err;
    assert_int_equal(ledger_open(places_of(caps), &l, &err), NIB_OK);
    const uint64_t before = ledger_promised(l, PLACE_RAM);
    fault_arm(FAULT_ALLOC, 1);
    assert_int_equal(
        memory_region_open(&r, device_host(), l, NIB_OWNER_STAGING, N_BYTE, false, "slots", &err),
        NIB_E_NOMEM);
    fault_arm(FAULT_ALLOC, 0);
    assert_non_null(strstr(err.message, "slots"));
    assert_int_equal(ledger_promised(l, PLACE_RAM), before);
    memory_region_close(&r);
    ledger_close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_say_what_they_are),       cmocka_unit_test(what_is_not_there_is_said),
        cmocka_unit_test(copies_arrive_in_order),          cmocka_unit_test(regions_are_charged_and_released),
        cmocka_unit_test(no_memory_gives_the_charge_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
