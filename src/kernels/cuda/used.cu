/* used.cu - the memory of a device that all processes use, before this process has opened the device. The
 * runtime knows it for an open device only. The driver's management library, if it is installed, knows it for
 * any. */
#include "kernels/cuda/launches.h"

#include <dlfcn.h>

struct nvml_memory {
    unsigned long long total, free, used;
};

size_t device_used(int device) {
    typedef int (*init_fn)(void);
    typedef int (*find_fn)(const char *bus, void **found);
    typedef int (*memory_fn)(void *of, nvml_memory *out);
    char bus[32];
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *found = nullptr;
    nvml_memory now = {};
    if (!library)
        return 0;
    const init_fn init = (init_fn)dlsym(library, "nvmlInit_v2"),
                  end = (init_fn)dlsym(library, "nvmlShutdown");
    const find_fn find = (find_fn)dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    const memory_fn memory = (memory_fn)dlsym(library, "nvmlDeviceGetMemoryInfo");
    if (init && end && find && memory && init() == 0) {
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess || find(bus, &found) != 0 ||
            memory(found, &now) != 0)
            now.used = 0;
        end();
    }
    dlclose(library);
    return (size_t)now.used;
}
