/* table.cu - the table of kernels, and the calls of the CUDA runtime in it. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

#include <cstdio>
#include <mutex>

/* Properties of this thread's device, which device_open queries once. */
static thread_local int sm_count, shared_bytes, major_version, minor_version;
static thread_local bool reads_host; /* kernels read pinned host memory at the host's addresses */

int device_sm_count(void) {
    return sm_count;
}
int device_shared_bytes(void) {
    return shared_bytes;
}

int device_major(void) {
    return major_version;
}

int device_capability(void) {
    return 10 * major_version + minor_version;
}

static const char *error_text(int error) {
    return cudaGetErrorString((cudaError_t)error);
}
static int device_count(int *n) {
    *n = 0;
    return (int)cudaGetDeviceCount(n);
}
/* Opens a device. *driver: the bytes that the first opening in this process took. */
static cudaError_t open_once(int device, size_t *driver) {
    static std::mutex lock;
    static size_t took[64];
    static bool known[64];
    const std::lock_guard<std::mutex> held(lock);
    const bool first = device < 64 && !known[device];
    const size_t before = first ? device_used(device) : 0;
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess && first) {
        e = cudaFree(nullptr); /* creates the context */
        const size_t after = before ? device_used(device) : 0;
        took[device] = after > before ? after - before : 0;
        known[device] = e == cudaSuccess;
    }
    *driver = device < 64 ? took[device] : 0;
    return e;
}
static int device_open(int device, cuda_device_info *info) {
    cudaDeviceProp p;
    size_t driver;
    cudaError_t e = open_once(device, &driver);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess)
        return (int)e;
    *info = cuda_device_info{};
    snprintf(info->name, sizeof info->name, "%.63s", p.name);
    info->major = major_version = p.major;
    info->minor = minor_version = p.minor;
    int same = 0;
    reads_host = !cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device) && same;
    info->n_sm = sm_count = p.multiProcessorCount;
    info->shared_bytes = shared_bytes = (int)p.sharedMemPerBlockOptin;
    info->memory = p.totalGlobalMem;
    info->l2 = (size_t)p.l2CacheSize;
    info->driver = driver;
    return 0;
}
static int memory_now(size_t *free, size_t *total) {
    return (int)cudaMemGetInfo(free, total);
}
static int alloc(void **p, size_t bytes) {
    return (int)cudaMalloc(p, bytes);
}
static int release(void *p) {
    return (int)cudaFree(p);
}
static int pin(void *host, size_t bytes) {
    return (int)cudaHostRegister(host, bytes, cudaHostRegisterDefault);
}
static int unpin(void *host) {
    return (int)cudaHostUnregister(host);
}
static int map(void *host, size_t bytes, void **device) {
    cudaError_t e = cudaHostRegister(host, bytes, cudaHostRegisterMapped);
    if (e != cudaSuccess)
        return (int)e;
    e = cudaHostGetDevicePointer(device, host, 0);
    if (e != cudaSuccess)
        cudaHostUnregister(host);
    return (int)e;
}
static int to_device(void *to, const void *host, size_t bytes, cuda_stream s) {
    return (int)cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)s);
}
static int to_host(void *host, const void *from, size_t bytes, cuda_stream s) {
    return (int)cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)s);
}
static int on_device(void *to, const void *from, size_t bytes, cuda_stream s) {
    return (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)s);
}
enum { COPY_THREADS = 256 };
__global__ void __launch_bounds__(COPY_THREADS)
    copy_by_kernel(uint8_t *to, size_t to_pitch, const uint8_t *from, size_t from_pitch, size_t n) {
    const size_t at = ((size_t)blockIdx.x * COPY_THREADS + threadIdx.x) * sizeof(uint4);
    if (at < n)
        *(uint4 *)(to + blockIdx.y * to_pitch + at) = *(const uint4 *)(from + blockIdx.y * from_pitch + at);
}
static int copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                     size_t n_row, bool by_kernel, cuda_stream s) {
    const size_t all = (size_t)to | to_pitch | (size_t)from | from_pitch | bytes;
    if (by_kernel && reads_host && n_row <= UINT16_MAX && all % sizeof(uint4) == 0) {
        const unsigned each = COPY_THREADS * sizeof(uint4);
        copy_by_kernel<<<dim3((unsigned)((bytes + each - 1) / each), (unsigned)n_row), COPY_THREADS, 0,
                         (cudaStream_t)s>>>((uint8_t *)to, to_pitch, (const uint8_t *)from, from_pitch,
                                            bytes);
        return (int)cudaGetLastError();
    }
    return (int)cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, n_row, cudaMemcpyDefault,
                                  (cudaStream_t)s);
}
static int fill(void *to, int byte, size_t bytes, cuda_stream s) {
    return (int)cudaMemsetAsync(to, byte, bytes, (cudaStream_t)s);
}
static int stream_new(cuda_stream *s) {
    return (int)cudaStreamCreateWithFlags((cudaStream_t *)s, cudaStreamNonBlocking);
}
static int stream_free(cuda_stream s) {
    return (int)cudaStreamDestroy((cudaStream_t)s);
}
static int stream_sync(cuda_stream s) {
    return (int)cudaStreamSynchronize((cudaStream_t)s);
}
static int stream_wait(cuda_stream s, cuda_event e) {
    return (int)cudaStreamWaitEvent((cudaStream_t)s, (cudaEvent_t)e, 0);
}
static int event_new(cuda_event *e) {
    return (int)cudaEventCreate((cudaEvent_t *)e);
}
static int event_free(cuda_event e) {
    return (int)cudaEventDestroy((cudaEvent_t)e);
}
static int event_record(cuda_event e, cuda_stream s) {
    return (int)cudaEventRecord((cudaEvent_t)e, (cudaStream_t)s);
}
static int event_ms(float *ms, cuda_event from, cuda_event to) {
    return (int)cudaEventElapsedTime(ms, (cudaEvent_t)from, (cudaEvent_t)to);
}
static int graph_begin(cuda_stream s) {
    return (int)cudaStreamBeginCapture((cudaStream_t)s, cudaStreamCaptureModeThreadLocal);
}
static int graph_end(cuda_stream s, cuda_graph *g) {
    cudaGraph_t recorded = nullptr;
    cudaError_t e = cudaStreamEndCapture((cudaStream_t)s, &recorded);
    if (e == cudaSuccess)
        e = cudaGraphInstantiate((cudaGraphExec_t *)g, recorded, 0);
    if (recorded)
        cudaGraphDestroy(recorded);
    return (int)e;
}
static int graph_launch(cuda_graph g, cuda_stream s) {
    return (int)cudaGraphLaunch((cudaGraphExec_t)g, (cudaStream_t)s);
}
static int graph_free(cuda_graph g) {
    return (int)cudaGraphExecDestroy((cudaGraphExec_t)g);
}

extern "C" __attribute__((visibility("default"))) const cuda_kernels *nib_cuda_kernels(void) {
    static const cuda_kernels table = {
        CUDA_KERNELS_VERSION,
        error_text,
        device_count,
        device_open,
        memory_now,
        alloc,
        release,
        pin,
        unpin,
        map,
        to_device,
        to_host,
        on_device,
        copy_rows,
        fill,
        stream_new,
        stream_free,
        stream_sync,
        stream_wait,
        event_new,
        event_free,
        event_record,
        event_ms,
        graph_begin,
        graph_end,
        graph_launch,
        graph_free,
        share_new,
        share_open,
        share_close,
        gtile_launch,
        linear_scratch,
        linear_launch,
        linear_leaves_whole,
        linear_sums,
        linear_left_rows,
        has_wide,
        wide_scratch,
        wide_launch,
        has_batch,
        batch_launch,
        mixed_scratch,
        mixed_launch,
        sparse_launch,
        codes_bytes,
        attend_scratch,
        attend_launch,
        attend_prompt_launch,
        store_launch,
        pack_launch,
        move_launch,
        norm_launch,
        each_launch,
        columns_launch,
        rope_launch,
        embed_launch,
        reduce_launch,
        gather_launch,
        residual_scratch,
        residual_launch,
        residual_add_launch,
        sample_scratch,
        sample_launch,
        sketch_takes,
        sketch_launch,
        shortlist_scratch,
        shortlist_launch,
        route_launch,
        experts_launch,
        hand_down_launch,
        hand_up_launch,
        handed_down,
        groups_launch,
        recurrent_launch,
        read_all_launch,
        random_matrix_launch,
        device_strategies,
        device_units,
    };
    return &table;
}
