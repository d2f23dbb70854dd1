/* places.h - where the ranks of a pipeline compute: the list or the file that a user gives. */
#ifndef NIB_CLUSTER_PLACES_H
#define NIB_CLUSTER_PLACES_H

#include "base/status.h"

enum { CLUSTER_MAX_RANK = 256, CLUSTER_HOST = 128, CLUSTER_PATH = 512 };

typedef struct cluster_place {
    char backend[16];         /* "cuda" for a GPU, else a back end's name */
    int gpu;                  /* its number on its host; -1: none */
    int host;                 /* of the file's lines, from 0: that of rank 0 */
    int n_beside;             /* ranks on its host, itself included; they share its processors */
    uint64_t ram, vram, disk; /* caps; NIB_AUTO: those of the options */
    char name[CLUSTER_HOST];  /* of its host; "": the list has no hosts */
    char model[CLUSTER_PATH], program[CLUSTER_PATH]; /* paths there; "": as on the first host, and "nibble" */
    char rates[CLUSTER_PATH]; /* file of a hardware profile here, for a plan; "": the host is asked */
} cluster_place;

typedef struct cluster_places {
    int n;
    bool over_network; /* from a file of hosts */
    bool simulated;    /* a place has `rates` */
    cluster_place place[CLUSTER_MAX_RANK];
} cluster_places;

/* Reads "cpu,cpu", "0,1", or with caps "0:16G,1:8G". All ranks have one back end, because answers depend on
 * it. NIB_E_USAGE names the part that is wrong. */
nib_status cluster_places_parse(const char *text, cluster_places *out, nib_error *err);
/* Reads the text of a file of hosts, in the order of the ranks (docs/cluster.md):
 *     HOST [DEVICES] [ram=SIZE] [vram=SIZE] [disk=SIZE] [model=PATH] [program=PATH] [rates=PATH]    # comment
 * DEVICES are as above, or one "cpu". NIB_E_USAGE names the line and what is wrong with it. */
nib_status cluster_hosts_parse(const char *text, cluster_places *out, nib_error *err);
/* Threads of a rank that shares its machine, for the options' number of threads. */
int cluster_threads(int n_thread, int n_beside);
/* Bytes of RAM for such a rank without a cap: its share of what is free, of which an eighth stays free. */
uint64_t cluster_free(int n_beside);
/* Replaces the options' caps by those that the place has, and threads that are not given by the place's share
 * of the processors of this machine. */
void cluster_place_options(const cluster_place *place, nib_engine_options *o);

#endif
