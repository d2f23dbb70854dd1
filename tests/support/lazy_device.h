/* lazy_device.h - a device for tests whose copies are made late, in order, and may fail. Its memory is that
 * of the check back end, which the host cannot read. */
#ifndef NIB_TESTS_LAZY_DEVICE_H
#define NIB_TESTS_LAZY_DEVICE_H

#include "memory/device.h"

#include <stdint.h>

device *lazy_device(void);
void lazy_device_run(void);           /* makes the queued copies, as the device does before its next kernel */
void lazy_device_fail(uint32_t nth);  /* one call of copy in nth fails; 0: none */
void *lazy_device_at(const void *at); /* where the test finds the device's memory */

#endif
