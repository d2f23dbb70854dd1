/* attend_host.h - attention on the processor, for generated rows of layers whose keys and values are in host
 * memory and whose other ops are the GPU's. A block is cut there (schedule/visits.h): a cell's queries, keys
 * and values go down in DEVICE_STORE when the GPU has computed them, the processor stores and attends, and
 * the result goes up in DEVICE_LOAD, while the GPU computes the other cell. The host waits only for what it
 * attends with. Prompt rows of these layers are the GPU's (staged.h). */
#ifndef NIB_EXEC_CUDA_ATTEND_HOST_H
#define NIB_EXEC_CUDA_ATTEND_HOST_H

#include "exec/backend.h"

typedef struct cuda cuda;

typedef struct attend_host {
    bool *cut; /* [n_block] */
    int n;     /* number of blocks; 0: none */
    struct {
        visit of;
        device_mark computed;
    } cells[2]; /* whose inputs the processor has not waited for, in their order */
    int n_cell;
    device_mark arrived; /* after the copies of cells[0] */
} attend_host;

nib_status attend_host_open(cuda *c, nib_error *err);
void attend_host_close(cuda *c);
/* Sets the blocks that are cut. */
void attend_host_follow(cuda *c, const homes_split *split);
void attend_host_begin(cuda *c); /* a pass */
/* To be called when the part before attention is queued. */
nib_status attend_host_send(cuda *c, nib_error *err);
/* Attends for the run's visit, whose part is VISIT_ATTENTION. */
nib_status attend_host_run(cuda *c, const backend_run *r, nib_error *err);

#endif
