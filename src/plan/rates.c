/* rates.c - see rates.h. Processor and memory rates are those of the best pass, because other processes only
 * make passes slower. Disk rates are medians, which the disk sustains. Rates that were not measured are
 * guesses: cautious figures of a laptop with AVX2 and an NVMe disk. */
#include "plan/rates.h"

#include "base/num.h"
#include "profile/hardware.h"

#include <math.h>
#include <string.h>

#define GUESS_RAM       10e9 /* bytes a second of one thread; three threads saturate two channels */
#define GUESS_DISK      1e9
#define GUESS_DISK_WAIT 1e-4
#define DISK_TURN       4e-5 /* fitted to the runs of a sweep on 2 cores: docs/budget.md */
#define GUESS_PACK      1e9
#define ATTEND_SHARE    0.75 /* of RAM's rate, which attention over halves reaches */
/* Bytes of kv4 to which a thread attends in a second, one head for each head of keys: 1.5 GB with AVX2 (a
 * core of an EPYC), about twice as much with AVX-512. */
#define GUESS_ATTEND    1.5e9
#define GUESS_LINK      12e9  /* 16 lanes of PCI Express 3 */
#define GUESS_VRAM      300e9 /* of a laptop's GPU, a little more than half of a desktop's */
#define GUESS_VRAM_MACS 2e13
/* Time of a launch within a graph besides its bytes, on an H200: 4.0 us for 8b's 161 and 3.9 for 1b's 81
 * launches (docs/gpu.md, untraced). Other GPUs are assumed to be equal. */
#define VRAM_LAUNCH 4e-6
#define GUESS_ROW   6e9  /* bytes of weights a second and thread */
#define GUESS_MACS  4e10 /* a second and thread */
#define GUESS_TWO   1.6
#define GUESS_OP    4e-6
#define OP_WORK     1e-6 /* seconds of an op that is not a product, mean of small models (bench --trace) */
/* Number of reads that the pager has in flight; the disk's rate at this depth counts. */
enum { DEPTH = 8 };

static void guess(const machine *m, int n_thread, plan_rates *out) {
    const double n = n_thread;
    *out = (plan_rates){.n_thread = n_thread,
                        .n_core = m->n_core,
                        .guessed = true,
                        .at = {[PLACE_RAM] = {.read = GUESS_RAM * NUM_MIN(n, 3), .to[PLACE_GPU] = GUESS_LINK},
                               [PLACE_DISK] = {.to[PLACE_RAM] = GUESS_DISK},
                               [PLACE_GPU] = {.read = GUESS_VRAM}},
                        .disk_file = GUESS_DISK,
                        .disk_turn = DISK_TURN,
                        .disk_wait = GUESS_DISK_WAIT,
                        .vram_macs = GUESS_VRAM_MACS,
                        .vram_launch = VRAM_LAUNCH,
                        .vram_guessed = true,
                        .pack = GUESS_PACK,
                        .two_slices = GUESS_TWO,
                        .asym = 1,
                        .op_s = n_thread > 1 ? GUESS_OP : GUESS_OP / 8};
    for (int i = 0; i < PLAN_BITS; i++) {
        out->one_row[i] = GUESS_ROW * n;
        out->many_rows[i] = GUESS_MACS * n * (i == 0 ? 0.25 : 1);
    }
}

/* The rate of the largest measured number of threads that does not exceed n_thread. */
static void memory_rate(const hardware *h, plan_rates *out) {
    for (int i = 0; i < h->n_memory; i++)
        if (h->memory[i].n_thread <= out->n_thread || i == 0)
            out->at[PLACE_RAM].read = h->memory[i].read.best;
}

/* The disk's rates by the size of a read, with as many reads in flight as the pager has, or with the most
 * that were measured. */
static void disk_rates(const hardware *h, plan_rates *out) {
    int depth = 0;
    for (int i = 0; i < h->n_disk; i++)
        if (h->disk[i].depth <= DEPTH)
            depth = NUM_MAX(depth, h->disk[i].depth);
    for (int i = 0; i < h->n_disk && out->n_disk < PLAN_DISK; i++) {
        if (h->disk[i].depth != depth)
            continue;
        int at = out->n_disk++;
        for (; at > 0 && out->disk[at - 1].size > (double)h->disk[i].block; at--)
            out->disk[at] = out->disk[at - 1];
        out->disk[at].size = (double)h->disk[i].block;
        out->disk[at].rate = h->disk[i].read.median;
    }
}

double plan_disk_rate(const plan_rates *r, double size) {
    int above = 0;
    while (above < r->n_disk && r->disk[above].size < size)
        above++;
    if (above == 0 || above == r->n_disk)
        return r->n_disk ? r->disk[above ? above - 1 : 0].rate : 0;
    const double from = r->disk[above - 1].size, to = r->disk[above].size;
    const double way = log(size / from) / log(to / from);
    return r->disk[above - 1].rate + way * (r->disk[above].rate - r->disk[above - 1].rate);
}

/* Seconds of one small read. */
static double disk_wait(const hardware *h) {
    const hardware_disk *small = NULL;
    for (int i = 0; i < h->n_disk; i++)
        if (h->disk[i].depth == 1 && (!small || h->disk[i].block < small->block))
            small = &h->disk[i];
    return small ? (double)small->block / small->read.median : 0;
}

/* Bytes a second of a product with one row: the rate of one thread times n_thread, up to the memory's rate.
 */
static double one_row(const hardware *h, const hardware_kernel *k, int n_thread) {
    const int n = NUM_MIN(n_thread, h->n_thread);
    return k->one_thread.best > 0 ? NUM_MIN(n * k->one_thread.best, k->one_row.best)
                                  : k->one_row.best * n / h->n_thread;
}

/* A width that was not measured gets the rates of the next measured one. */
static void kernel_rates(const hardware *h, plan_rates *out) {
    const double share = (double)NUM_MIN(out->n_thread, h->n_thread) / h->n_thread;
    double two = 0;
    for (int bits = 0; bits < PLAN_BITS; bits++) {
        const hardware_kernel *near = NULL;
        for (int i = 0; i < h->n_kernel; i++) {
            const hardware_kernel *k = &h->kernels[i];
            if ((k->bits == 0) != (bits == 0) || k->asym)
                continue;
            if (!near ||
                NUM_MAX(k->bits - bits, bits - k->bits) < NUM_MAX(near->bits - bits, bits - near->bits))
                near = k;
        }
        if (!near)
            continue;
        out->one_row[bits] = one_row(h, near, out->n_thread);
        out->many_rows[bits] = near->many_rows.best * share;
        /* products read from memory too, so a slower measurement of plain reading was disturbed */
        out->at[PLACE_RAM].read = NUM_MAX(out->at[PLACE_RAM].read, out->one_row[bits]);
        two = NUM_MAX(two, near->one_row.best / near->two_rows.best);
    }
    for (int i = 0; i < h->n_kernel; i++)
        if (h->kernels[i].asym)
            out->asym = NUM_MAX(out->asym,
                                out->one_row[h->kernels[i].bits] / one_row(h, &h->kernels[i], out->n_thread));
    out->two_slices = two > 0 ? NUM_MAX(two, 1) : out->two_slices;
}

static void measured_rates(const hardware *h, uint64_t page, uint64_t part, plan_rates *out) {
    out->guessed = false;
    memory_rate(h, out);
    out->one_row[0] = out->at[PLACE_RAM].read; /* floats are not measured: memory is their limit */
    disk_rates(h, out);
    if (out->n_disk) {
        out->at[PLACE_DISK].to[PLACE_RAM] = plan_disk_rate(out, (double)page);
        out->disk_file = plan_disk_rate(out, (double)part);
    }
    if (disk_wait(h) > 0)
        out->disk_wait = disk_wait(h);
    if (h->n_kernel && h->n_thread)
        kernel_rates(h, out);
    if (h->link > 0)
        out->at[PLACE_RAM].to[PLACE_GPU] = h->link;
    out->vram_guessed = h->link <= 0 || h->gpu_read <= 0;
    if (h->gpu_read > 0)
        out->at[PLACE_GPU].read = h->gpu_read;
    if (h->gpu_macs > 0)
        out->vram_macs = h->gpu_macs;
    if (h->pack.median > 0)
        out->pack = h->pack.median;
    if (h->barrier_s > 0)
        out->op_s = h->barrier_s + OP_WORK;
}

/* Where attention was not measured: over halves memory is the limit, over codes the threads are. */
static void attend_rates(const hardware *h, plan_rates *out) {
    static const int bits[PLAN_KV_WIDTHS] = {16, 8, 4};
    const double ram = out->at[PLACE_RAM].read;
    for (int w = 0; w < PLAN_KV_WIDTHS; w++) {
        out->attend[w] = w ? NUM_MIN(GUESS_ATTEND * out->n_thread, ram) : ATTEND_SHARE * ram;
        for (int i = 0; h && i < h->n_attend; i++)
            if (h->attend[i].bits == bits[w])
                out->attend[w] =
                    NUM_MIN(h->attend[i].one_thread.best * out->n_thread, h->attend[i].all_threads.best);
    }
}

void plan_rates_of(const hardware *h, const machine *m, int n_thread, uint64_t page, uint64_t part,
                   plan_rates *out) {
    guess(m, n_thread, out);
    if (h)
        measured_rates(h, page, part, out);
    attend_rates(h, out);
}

void plan_rates_like(const gpu_rates *like, plan_rates *out) {
    if (!out->vram_guessed || like->read <= 0)
        return;
    out->at[PLACE_GPU].read = like->read;
    out->at[PLACE_RAM].to[PLACE_GPU] = like->link;
    out->vram_macs = like->macs;
}
