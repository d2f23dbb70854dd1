/* memory.h - the check back end's device: host memory under addresses that no other code can read.
 *
 * An address of this device has a bit set that no address of a process has, so code that uses it as host
 * memory crashes at once. The back end refuses an address without the bit, so it never computes with data
 * that was not copied to it. */
#ifndef NIB_EXEC_CHECK_MEMORY_H
#define NIB_EXEC_CHECK_MEMORY_H

#include "memory/device.h"

extern const device_kind check_memory;
device *check_device(void);
/* The host address of the bytes; NULL: the address is not one of the device. Only for the back end. */
void *check_at(const void *address);

#endif
