/* device.c - see device.h: the list of device kinds. */
#include "memory/device.h"

#include "base/num.h"
#include "base/status.h"
#include "memory/device_cuda.h"

static const device_kind *const kinds[] = {&device_host_kind, &device_cuda_kind};

static const char *const tier_names[NIB_N_TIER] = {
    [NIB_TIER_RAM] = "RAM", [NIB_TIER_VRAM] = "VRAM", [NIB_TIER_DISK] = "disk"};

nib_status device_open(int tier, int index, device **out, nib_error *err) {
    if (tier < 0 || tier >= NIB_N_TIER)
        return nib_fail(err, NIB_E_USAGE, "expected a tier from 0 to %d, found %d", NIB_N_TIER - 1, tier);
    for (size_t i = 0; i < NUM_COUNT(kinds); i++)
        if (kinds[i]->tier == tier)
            return kinds[i]->open(index, out, err);
    return nib_fail(err, NIB_E_NOTFOUND,
                    "expected a tier with a device, found %s, which has none in this build",
                    tier_names[tier]);
}

void device_close(device *d) {
    if (d)
        d->kind->close(d);
}
