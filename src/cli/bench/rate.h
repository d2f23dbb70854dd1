/* rate.h - the rate at which generation reads weights, as a share of the plain read rate of memory.
 *
 * Generation is cut into pieces of about BENCH_PIECE_SECONDS, with a pass of plain reading before and after
 * each: the read rate changes within seconds, so each piece is compared with the passes beside it. */
#ifndef NIB_CLI_BENCH_RATE_H
#define NIB_CLI_BENCH_RATE_H

#include "cli/cli.h"
#include "cli/bench/memory_reader.h"

#include "base/rate.h"

enum { BENCH_MAX_PIECES = 4096 };
#define BENCH_PIECE_SECONDS 0.05

typedef struct bench_rate {
    memory_reader memory;
    int n;                              /* pieces */
    double pieces[BENCH_MAX_PIECES];    /* steps a second; a step reads all weights once */
    double reads[BENCH_MAX_PIECES + 1]; /* bytes a second, before and after each piece; zero: not known */
} bench_rate;

/* Starts the reading process, unless RAM is capped, since the cap holds for child processes too. To be called
 * before an engine is opened (memory_reader_open). */
void bench_rate_open(bench_rate *r, const cli_args *args, int n_thread);
void bench_rate_close(bench_rate *r);

/* True if the engine has memory on a GPU. Then the reading process is ended, since RAM is not the limit
 * there. */
bool bench_rate_is_on_gpu(bench_rate *r, const nib_engine *engine);

void bench_rate_begin(bench_rate *r);                    /* forgets all pieces, and reads once */
void bench_rate_piece(bench_rate *r, double per_second); /* adds a piece's steps a second, and reads once */

/* Computes the share of the pieces, with step_bytes read in a step, and the read rate. Leaves both as they
 * are if a pass failed or without pieces. Consumes the pieces. */
void bench_rate_share(bench_rate *r, double step_bytes, rate_share *share, rate *read);
/* Measures the read rate alone, without pieces. Leaves *read as it is if the passes failed. */
void bench_rate_alone(bench_rate *r, rate *read);

/* Processor seconds of this process so far, of all threads: on a busy machine they say more than the clock.
 */
double bench_cpu_seconds(void);

json_t *bench_rate_json(double x); /* JSON null unless above zero: not known */

#endif
