/* device_disk.h - a disk as a device: memory that nobody addresses, with copies to and from RAM.
 *
 * Every allocation is a file without a name (file_open_scratch), which a killed process leaves nothing of.
 * Its addresses are reserved and cannot be read; they only name bytes of the file, so that owners compute
 * with them as with those of other devices. Addresses on the disk, and numbers of bytes, are multiples of
 * DEVICE_PAGE.
 *
 * The lanes for keys and values (DEVICE_LOAD_CACHE, DEVICE_STORE_CACHE) have a thread each and their copies
 * are reads and writes in the order of queueing; up to MAX_READ_QUEUE reads are in flight. Other lanes have
 * no copies from or to the disk. A copy in RAM is complete when the call returns. The host is the lane
 * DEVICE_COMPUTE: following a mark waits for it. */
#ifndef NIB_MEMORY_DEVICE_DISK_H
#define NIB_MEMORY_DEVICE_DISK_H

#include "memory/device.h"

/* Opens the disk with this folder as PLACE_DISK. The folder is made when memory is allocated. Closed with
 * device_close. */
nib_status device_disk_open(const char *folder, device **out, nib_error *err);

/* Seconds since it was opened: of reads, of writes, and of waiting for either (device_kind.wait). */
typedef struct device_disk_seconds {
    double read, write, wait;
} device_disk_seconds;
device_disk_seconds device_disk_time(device *d);

#endif
