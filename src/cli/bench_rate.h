/* bench_rate.h - the weight bytes that generation reads, as a share of what memory gives.
 *
 * Generation is cut in pieces of about BENCH_PIECE_SECONDS, with a pass of plain reading before and after
 * each: what memory gives changes within seconds, and a share is of what it gave just then. */
#ifndef NIB_CLI_BENCH_RATE_H
#define NIB_CLI_BENCH_RATE_H

#include "cli/cli.h"
#include "cli/memory_reader.h"

#include "base/rate.h"

enum { BENCH_MAX_PIECES = 4096 };
#define BENCH_PIECE_SECONDS 0.05

typedef struct bench_rate {
    memory_reader memory;
    int n;                              /* pieces */
    double pieces[BENCH_MAX_PIECES];    /* steps a second; a step reads all weights once */
    double reads[BENCH_MAX_PIECES + 1]; /* bytes a second, before and after each piece; zero: not known */
} bench_rate;

/* Starts the process that reads, unless there is a cap on RAM: the cap is a promise for everything that is
 * started here. Before an engine is opened (memory_reader_open). */
void bench_rate_open(bench_rate *r, const cli_args *args, int n_thread);
void bench_rate_close(bench_rate *r);

/* Whether the engine has memory on a GPU. If so, the process that reads is ended, since RAM is no limit
 * there. */
bool bench_rate_is_on_gpu(bench_rate *r, const nib_engine *engine);

void bench_rate_begin(bench_rate *r);                    /* forgets all pieces, and reads once */
void bench_rate_piece(bench_rate *r, double per_second); /* after a piece: its steps a second; reads once */

/* The share that the pieces had, with step_bytes read in a step, and what the passes of reading gave. Both
 * are left as they are if some pass gave nothing, or without a piece. Uses up the pieces. */
void bench_rate_share(bench_rate *r, double step_bytes, rate_share *share, rate *read);
/* Reading without pieces: some passes alone. *read is left as it is if they gave nothing. */
void bench_rate_alone(bench_rate *r, rate *read);

/* Processor seconds of this process so far, of all threads: on a busy machine they say more than the clock.
 */
double bench_cpu_seconds(void);

json_t *bench_rate_json(double x); /* null: not above zero, which is not known */

#endif
