/* acquire.c - see acquire.h. */
#include "weights/acquire.h"

nib_status acquire_block(pager *p, device_store *to, const visit *at, const visits *rest, acquired *out,
                         nib_error *err) {
    *out = (acquired){0};
    if (to && device_store_has(to, at))
        return device_store_acquire(to, p, at, rest, &out->views, &out->mark, err);
    pager_pin(p, at, rest, &out->views);
    return NIB_OK;
}

nib_status acquire_release(pager *p, device_store *to, const visit *at, const visits *rest, nib_error *err) {
    if (to && device_store_has(to, at))
        return device_store_release(to, at, rest, err);
    pager_unpin(p);
    return NIB_OK;
}

void acquire_end(device_store *to) {
    if (to)
        device_store_end(to);
}
