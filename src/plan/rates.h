/* rates.h - the rates that a plan is computed with: from the hardware profile, or guesses that are reported
 * as such. */
#ifndef NIB_PLAN_RATES_H
#define NIB_PLAN_RATES_H

#include "base/place.h"

enum { PLAN_BITS = 9, PLAN_DISK = 8 };
enum { PLAN_KV_HALVES, PLAN_KV_CODES_8, PLAN_KV_CODES_4, PLAN_KV_WIDTHS }; /* of keys and values */

/* Of a place (base/place.h), in bytes a second; 0: it does not happen. */
typedef struct place_rates {
    double read;       /* by products that are computed from there */
    double to[PLACES]; /* the link to another place */
} place_rates;

/* The rates of the machine with the plan's threads. All are above 0. */
typedef struct plan_rates {
    int n_thread, n_core;
    bool guessed; /* nothing was measured on this machine */
    place_rates at[PLACES];
    double attend[PLAN_KV_WIDTHS]; /* of keys and values, to which rows of many sequences attend */
    double disk_file; /* bytes a second from the disk to RAM, of the model's files: parts of pages; a packed
                         file is read in whole pages, at the rate of the link */
    struct {
        double size, rate;
    } disk[PLAN_DISK];  /* the measured rates behind these two: bytes a second, by the size of a read */
    int n_disk;         /* 0: only these two are known */
    double disk_turn;   /* seconds of the reader thread for each read, during which it starts no other read */
    double disk_wait;   /* seconds of one small read that nothing overlaps */
    double vram_macs;   /* multiply-adds a second of a GPU, with many rows */
    double vram_launch; /* seconds of a launch besides its bytes */
    bool vram_guessed;  /* not measured: these, the GPU's memory or its link */
    double pack;        /* bytes a second that one thread packs from the files' order */
    double one_row[PLAN_BITS];   /* by bits of the weights, [0]: floats: bytes of weights a second in products
                                    with one row */
    double many_rows[PLAN_BITS]; /* the same index: multiply-adds a second in products with many rows */
    double two_slices;           /* time of a product with 16-bit activations over that with 8-bit ones */
    double asym; /* time of a product with minima beside the scales over that without; below 1 counts as 1 */
    double op_s; /* seconds of an op besides its work: the barrier */
} plan_rates;

/* Rates that GPUs like a device reach; 0: unknown. Units as above. */
typedef struct gpu_rates {
    double read, link, macs;
} gpu_rates;
/* Replaces guessed rates of a GPU. */
void plan_rates_like(const gpu_rates *like, plan_rates *out);

struct hardware;
struct machine;

/* h NULL: nothing was measured. page, part: bytes of one read from a packed file, and from the model's
 * files. */
void plan_rates_of(const struct hardware *h, const struct machine *m, int n_thread, uint64_t page,
                   uint64_t part, plan_rates *out);

/* Bytes a second with reads of that size, interpolated over the logarithm of the size. 0: nothing was
 * measured. */
double plan_disk_rate(const plan_rates *r, double size);

#endif
