/* document.c - man page and shell completions from the tables of commands and options. */
#include "cli/document.h"

#include "cli/options.h"

#include <string.h>

/* Text for troff: backslashes and dashes escaped, no line begins with a control character. */
static void put_troff(const char *text, FILE *out) {
    bool line_start = true;
    for (const char *c = text; *c; c++) {
        if (line_start && (*c == '.' || *c == '\''))
            fputs("\\&", out);
        if (*c == '\\')
            fputs("\\\\", out);
        else if (*c == '-')
            fputs("\\-", out);
        else
            fputc(*c, out);
        line_start = *c == '\n';
    }
}

static void man_option(const cli_option *o, FILE *out) {
    char flag[64];
    cli_option_flag(o, flag, sizeof flag);
    fputs(".TP\n.B ", out);
    if (o->letter)
        fprintf(out, "\\-%c, ", o->letter);
    put_troff(flag, out);
    if (o->arg)
        fprintf(out, " \\fI%s\\fR", o->arg);
    fputc('\n', out);
    put_troff(o->help, out);
    if ((o->kind == OPTION_INT || o->kind == OPTION_FLOAT) && o->fallback != 0)
        fprintf(out, " (default %.15g)", o->fallback);
    fputc('\n', out);
}

static void man_command(const cli_command *command, FILE *out) {
    fprintf(out, ".SS nibble %s ", command->name);
    put_troff(command->usage, out);
    fputs("\n", out);
    put_troff(command->summary, out);
    fputs(".\n", out);
    if (command->details) {
        fputs(".PP\n.nf\n", out);
        put_troff(command->details, out);
        fputs(".fi\n", out);
    }
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_command_takes(command, &cli_options[i]) && !(cli_options[i].groups & CLI_COMMON))
            man_option(&cli_options[i], out);
}

void cli_print_man(FILE *out) {
    fprintf(
        out,
        ".TH NIBBLE 1 \"\" \"nibble %s\"\n.SH NAME\n"
        "nibble \\- run large language models inside a memory budget\n"
        ".SH SYNOPSIS\n.B nibble\n\\fICOMMAND MODEL\\fR [\\fIoptions\\fR]\n"
        ".SH DESCRIPTION\nYou say how much memory nibble may use; it keeps to that, reading from disk what "
        "does not fit, and generates. \\fIMODEL\\fR is a .gguf file, a folder with config.json and "
        "*.safetensors, or a name from \\fBnibble models\\fR. Answers go to standard output, everything "
        "else to standard error.\n.SH OPTIONS OF EVERY COMMAND\n",
        nib_version());
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_options[i].groups & CLI_COMMON)
            man_option(&cli_options[i], out);
    fputs(".SH COMMANDS\n", out);
    for (const cli_command *const *c = cli_registry; *c; c++)
        man_command(*c, out);
    fputs(".SH EXIT STATUS\n0 done, 1 failed while running, 2 wrong usage, 3 the plan does not fit the "
          "budget, 4 the "
          "model is damaged or unsupported, 5 the device is unavailable, 130 interrupted, 143 ended by "
          "SIGTERM (129 by SIGHUP).\n"
          ".SH ENVIRONMENT\nEvery option can be set as NIBBLE_ and its name in capitals (NIBBLE_RAM=2G); a "
          "flag "
          "wins.\n.TP\n.B NIBBLE_MODELS\nthe folder of models; else $XDG_DATA_HOME/nibble/models\n"
          ".TP\n.B NIBBLE_ISA\nuse no more than this one of the kernels listed by \fBnibble hw\fR: ref, "
          "avx2, avx512\n"
          ".TP\n.B NIBBLE_CPU\nact as a processor with no more than these features, of those listed by "
          "\fBnibble hw\fR: x86-64 is none of them, avx2,avx_vnni is two\n"
          ".TP\n.B NO_COLOR\nno colours\n"
          ".SH FILES\n.TP\n.I $XDG_STATE_HOME/nibble/history\nwhat was typed in \\fBnibble chat\\fR, the "
          "newest 1000 lines; else ~/.local/state/nibble/history\n"
          ".TP\n.I ~/.editrc\nkeys of the line editor, see editrc(5)\n",
          out);
}

static void print_flags(const cli_command *command, const char *between, FILE *out) {
    char flag[64];
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_command_takes(command, &cli_options[i])) {
            cli_option_flag(&cli_options[i], flag, sizeof flag);
            fprintf(out, "%s%s", flag, between);
        }
}

static void print_bash(FILE *out) {
    fputs("# bash completion for nibble\n_nibble() {\n    local cur=${COMP_WORDS[COMP_CWORD]} words\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words='",
          out);
    for (const cli_command *const *c = cli_registry; *c; c++)
        fprintf(out, "%s ", (*c)->name);
    fputs("--help --version'\n    else\n        case ${COMP_WORDS[1]} in\n", out);
    for (const cli_command *const *c = cli_registry; *c; c++) {
        fprintf(out, "        %s) words='", (*c)->name);
        print_flags(*c, " ", out);
        fputs("' ;;\n", out);
    }
    fputs("        esac\n    fi\n    case $cur in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) "
          ";;\n"
          "    *) [ \"$COMP_CWORD\" = 1 ] && COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ||\n"
          "        COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n    esac\n}\n"
          "complete -o filenames -F _nibble nibble\n",
          out);
}

static void print_zsh(FILE *out) {
    fputs("#compdef nibble\n_nibble() {\n    if (( CURRENT == 2 )); then\n        local -a commands=(\n",
          out);
    for (const cli_command *const *c = cli_registry; *c; c++)
        fprintf(out, "            '%s:%s'\n", (*c)->name, (*c)->summary);
    fputs("        )\n        _describe command commands\n        return\n    fi\n    local -a flags\n"
          "    case $words[2] in\n",
          out);
    for (const cli_command *const *c = cli_registry; *c; c++) {
        fprintf(out, "    %s) flags=(", (*c)->name);
        print_flags(*c, " ", out);
        fputs(") ;;\n", out);
    }
    fputs(
        "    esac\n    if [[ $PREFIX == -* ]]; then compadd -- $flags; else _files; fi\n}\n_nibble \"$@\"\n",
        out);
}

bool cli_print_completion(const char *shell, FILE *out) {
    if (!strcmp(shell, "bash"))
        print_bash(out);
    else if (!strcmp(shell, "zsh"))
        print_zsh(out);
    else
        return false;
    return true;
}
