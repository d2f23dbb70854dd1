/* residuals.h - the options for residuals (docs/paper-qdec.md): sets an engine's options from the arguments,
 * and tunes an open engine for --slowdown. Functions that return int return an exit code, and have printed
 * what is wrong if it is not 0. */
#ifndef NIB_CLI_OPTIONS_RESIDUALS_H
#define NIB_CLI_OPTIONS_RESIDUALS_H

#include "cli/cli.h"

#define CLI_SCORING_S 60.0 /* maximum seconds of measuring perplexities for --slowdown */

/* Refuses --k-chunk and --slowdown without --residual. */
int cli_check_residuals(const cli_args *args);
/* Sets the engine's options for residuals. args must outlive options. */
void cli_residual_options(const cli_args *args, nib_engine_options *options);
/* The default of --residual with --quality high, before a plan is made: --slowdown 5 if RAM holds the
 * residuals beside all weights and the original takes more, else no residuals. */
int cli_idle_residuals(cli_args *args, const char *model, nib_engine_options *options,
                       const nib_plan_options *how);

/* Tunes an engine with residuals for --slowdown and prints the result as notes; max_s as nib_residuals_tune.
 * json: NULL, or receives the call's document (caller frees with mem_free). */
int cli_tune_residuals(const cli_args *args, nib_engine *engine, double max_s, char **json);
/* A step of that document as a line of a table; step NULL: the table's head. */
void cli_residual_step(const json_t *step, char *out, size_t size);

#endif
