/* learned.h - the times of generation on this machine, run by run: a small file beside the hardware profile,
 * used by the next prediction (plan/expect.h). It changes predictions, never decisions or answers.
 *
 * $XDG_CACHE_HOME/nibble/learned/<machine>.jsonl: a line with the machine (processor, cores, instruction
 * set), then one line for each kind of run. The file is not trusted: a line that does not parse is an error,
 * and everything has bounds. */
#ifndef NIB_PROFILE_LEARNED_H
#define NIB_PROFILE_LEARNED_H

#include "base/status.h"
#include "profile/machine.h"

enum {
    LEARNED_BITS = 9,    /* widths of weights: 1...8, and 0 for floats */
    LEARNED_SECONDS = 7, /* of the runs of one kind, the last ones are kept */
    MAX_LEARNED = 192    /* maximum number of kinds; the oldest one is replaced */
};

/* The work of one generated token: what the cost formula is made of. */
typedef struct learned_work {
    double bytes[2][LEARNED_BITS]; /* of weights that products read, with activations of up to 8 bits and of
                                      16; by the weights' bits */
    double asym_bytes;             /* of them all, in formats with minima */
    double n_op;
    double cache_bytes, cache_macs; /* of attention, in the middle of what is generated */
    double disk_bytes;              /* that are read */
    double pack_bytes;              /* of them, packed by the reader (in the packed form) */
    double n_wait;                  /* small reads that nothing overlaps: rows of a table */
    double read_bytes;              /* of one read */
} learned_work;

typedef struct learned_run {
    char content[40]; /* the model's content key */
    uint64_t device;  /* number of the disk that is read from; 0: nothing is */
    int n_thread;
    char kv[8];                      /* type of the cache */
    bool packed;                     /* what is streamed comes from a packed file */
    learned_work work;               /* of the latest */
    double formula_s;                /* seconds that the cost formula said then */
    double seconds[LEARNED_SECONDS]; /* of one token, the oldest first */
    int n_seconds;
    int64_t at; /* counts up: the largest is the latest */
} learned_run;

typedef struct learned {
    learned_run *runs;
    int n;
} learned;

void learned_clear(learned *l); /* zeroed is fine */

/* The median of the seconds. */
double learned_seconds(const learned_run *r);

/* How unlike two runs are: 0: as good as the same; above 1: they say little about each other. */
double learned_distance(const learned_run *a, const learned_run *b);

/* A run that was measured now (n_seconds is 1): joins the nearest kind, or becomes one. */
nib_status learned_add(learned *l, const learned_run *now, nib_error *err);

char *learned_path(const machine *m); /* caller frees with mem_free; NULL: no memory, or no cache folder */
/* *out is set only on success. NIB_E_NOTFOUND: there is none, or it is another machine's. */
nib_status learned_load(const char *path, const machine *m, learned *out, nib_error *err);
nib_status learned_parse(const char *text, size_t n_byte, const machine *m, learned *out, nib_error *err);
/* Whole or not at all; makes the folders. */
nib_status learned_save(const char *path, const machine *m, const learned *l, nib_error *err);
nib_status learned_print(const machine *m, const learned *l, char **text, nib_error *err); /* mem_free */

#endif
