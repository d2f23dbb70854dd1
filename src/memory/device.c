/* device.c - see device.h: the list of device kinds. */
#include "memory/device.h"

#include "base/num.h"
#include "base/status.h"
#include "memory/device_cuda.h"

static const device_kind *const kinds[] = {&device_host_kind, &device_cuda_kind};

nib_status device_open(const memory_places *places, int at, device **out, nib_error *err) {
    const memory_place *p = &places->of[at];
    for (size_t i = 0; i < NUM_COUNT(kinds); i++)
        if (kinds[i]->tier == p->kind) {
            NIB_TRY(kinds[i]->open(p->index, out, err));
            (*out)->place = at;
            return NIB_OK;
        }
    return nib_fail(err, NIB_E_NOTFOUND, "expected a place with a device, found %s, which has none",
                    place_names[at]);
}

void device_close(device *d) {
    if (d)
        d->kind->close(d);
}
