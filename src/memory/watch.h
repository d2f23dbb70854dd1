/* watch.h - who is told of copies while a timeline is recorded. */
#ifndef NIB_MEMORY_WATCH_H
#define NIB_MEMORY_WATCH_H

#include "memory/device.h"

/* Receives the begin and the end of work in a lane: of copies, or of a reordering. Zeroed: nobody does. */
typedef struct device_watch {
    nib_status (*begin)(void *user, const char *what, device_lane lane, bool link, uint64_t bytes,
                        nib_error *err);
    nib_status (*end)(void *user, device_lane lane, nib_error *err);
    void *user;
} device_watch;

#endif
