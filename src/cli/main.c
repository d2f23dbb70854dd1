/* main.c - finds the sub-command, parses its options, runs it. The only place that decides an exit code. */
#include "cli/cli.h"
#include "nib_tools.h"

#include "base/cgroup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/similar.h"
#include "cli/options/document.h"
#include "cli/options/compat.h"
#include "cli/pull/pull.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *find_command(const char *name) {
    for (const cli_command *const *c = cli_registry; *c; c++)
        if (!strcmp((*c)->name, name))
            return *c;
    return NULL;
}

static int unknown_command(const char *name) {
    const char *instead = cli_compat_command(name);
    if (instead)
        return cli_usage_error("unknown command '%s'; use %s", name, instead);
    similar meant = similar_to(name);
    for (const cli_command *const *c = cli_registry; *c; c++)
        similar_offer(&meant, (*c)->name);
    if (meant.best[0])
        return cli_usage_error("unknown command '%s'; did you mean '%s'? ('nibble --help' lists all)", name,
                               meant.best);
    return cli_usage_error("unknown command '%s'; 'nibble --help' lists them", name);
}

static uint64_t machine_bytes(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Without a cap on RAM, and with `auto`, the limit of a control group is the cap: a process that exceeds it
 * is killed. */
static void take_limit(cli_args *args) {
    cgroup_limits limits;
    char ram[32], limit[32];
    if (args->ram != NIB_AUTO)
        return;
    cgroup_limits_read(&limits);
    if (limits.ram == UINT64_MAX || limits.limit >= machine_bytes())
        return;
    args->ram = limits.ram;
    cli_note(args, "nibble: --ram %s: %s is %s", num_format_size(limits.ram, ram), limits.from,
             num_format_size(limits.limit, limit));
}

/* Runs the command. With -hf the model is one of the hub, downloaded if it is not on this machine. */
static int run_with_model(const cli_command *command, cli_args *args) {
    char *path = NULL;
    if (args->hf_repo && args->model)
        return cli_usage_error("the model is given twice: '%s' and --hf-repo %s", args->model, args->hf_repo);
    const int code = args->hf_repo ? pull_path(args, args->hf_repo, &path) : 0;
    if (path)
        args->model = path;
    if (!code && (command->groups & CLI_MEMORY))
        take_limit(args);
    const int result = code ? code : command->run(args);
    mem_free(path);
    return result;
}

/* True if --json is given, also after an argument that is wrong. */
static bool asks_for_json(int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strcmp(argv[i], "--json"))
            return true;
    return false;
}

static int run_command(const cli_command *command, int argc, char **argv) {
    cli_args args;
    nib_error err;
    int code;
    if (!cli_parse(command, argc, argv, &args)) {
        code = cli_failure_code();
    } else if (args.help) {
        cli_print_help(command, stdout);
        code = 0;
    } else if ((command->groups & CLI_MODEL) && !(command->groups & CLI_MODEL_OPTIONAL) && !args.model &&
               !args.hf_repo) {
        code = cli_usage_error("which model? usage: nibble %s %s", command->name, command->usage);
    } else if (args.backend && nib_backend_check(args.backend, &err)) {
        code = cli_fail(&err);
    } else if ((int64_t)args.rest.n > command->n_rest) {
        code = cli_usage_error(
            "unexpected argument '%s' (a text of several words needs quotes); usage: nibble %s %s",
            args.rest.data[command->n_rest], command->name, command->usage);
    } else if (!cli_log_open(args.log)) {
        code = nib_status_exit_code(NIB_E_USAGE);
    } else {
        /* a misspelt limit would silently test another processor */
        code = nib_processor_check(&err) ? cli_fail(&err) : run_with_model(command, &args);
    }
    if (code && !cli_wrote_json() && (args.json || asks_for_json(argc, argv)))
        cli_print_failure(code, &args);
    cli_args_clear(&args);
    return cli_finish(code);
}

/* Serves as a rank of a pipeline, as started by another process ("--rank CONNECTIONS"). Ctrl-C is for that
 * one. */
static int run_rank(char **argv) {
    cli_args args = {.quiet = true};
    nib_error err;
    signal(SIGINT, SIG_IGN);
    const nib_status status = nib_rank_serve(argv[2], cli_log, &args, &err);
    return cli_finish(status ? cli_fail(&err) : 0);
}

int main(int argc, char **argv) {
    cli_hold_closed();
    cli_signals_init();
    if (argc < 2) {
        cli_print_overview(stderr);
        return nib_status_exit_code(NIB_E_USAGE);
    }
    const char *word = argv[1];
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || (!strcmp(word, "help") && argc == 2)) {
        cli_print_overview(stdout);
        return cli_finish(0);
    }
    if (!strcmp(word, "help")) {
        const cli_command *command = find_command(argv[2]);
        if (!command)
            return unknown_command(argv[2]);
        cli_print_help(command, stdout);
        return cli_finish(0);
    }
    if (!strcmp(word, "--version")) {
        printf("nibble %s\n", nib_version());
        return cli_finish(0);
    }
    if (!strcmp(word, "--man")) {
        cli_print_man(stdout);
        return cli_finish(0);
    }
    if (!strcmp(word, "--completion")) {
        if (argc == 3 && cli_print_completion(argv[2], stdout))
            return cli_finish(0);
        return cli_usage_error("--completion: expected bash or zsh, found '%s'",
                               argc > 2 ? argv[2] : "nothing");
    }
    if (!strcmp(word, "--rank") && argc == 3)
        return run_rank(argv);
    const cli_command *command = find_command(word);
    if (!command && word[0] == '-')
        return cli_usage_error(
            "expected a command before '%s', such as 'nibble run %s ...'; 'nibble --help' lists them", word,
            word);
    if (!command)
        return unknown_command(word);
    return run_command(command, argc - 2, argv + 2);
}
