/* document.c - the man page, from the tables of commands, options and flags of other programs. */
#include "cli/options/document.h"

#include "cli/options/compat.h"
#include "cli/options/options.h"

#include <string.h>

/* Writes text [n] for troff: escapes backslashes and dashes, and begins no line with a control character. */
static void put_troff_n(const char *text, size_t n, FILE *out) {
    if (n && (*text == '.' || *text == '\''))
        fputs("\\&", out);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\\')
            fputs("\\\\", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
}

static void put_troff(const char *text, FILE *out) {
    put_troff_n(text, strlen(text), out);
}

/* Writes a command's details. Lines that begin with a space (examples) stay as they are, others are filled;
 * an empty line ends a paragraph. */
static void man_details(const char *text, FILE *out) {
    bool kept = false;
    fputs(".PP\n", out);
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        const bool keep = n && *text == ' ';
        if (keep != kept && n)
            fputs(keep ? ".nf\n" : ".fi\n", out);
        kept = n ? keep : kept;
        if (n == 0)
            fputs(".PP\n", out);
        else
            put_troff_n(text, n, out);
        if (n)
            fputc('\n', out);
    }
    if (kept)
        fputs(".fi\n", out);
}

static void man_option(const cli_option *o, FILE *out) {
    char flag[64], fallback[48];
    cli_option_flag(o, flag, sizeof flag);
    cli_option_default(o, fallback, sizeof fallback);
    fputs(".TP\n.B ", out);
    if (o->letter)
        fprintf(out, "\\-%c, ", o->letter);
    put_troff(flag, out);
    if (o->arg)
        fprintf(out, " \\fI%s\\fR", o->arg);
    fputc('\n', out);
    put_troff(o->help, out);
    put_troff(fallback, out);
    fputc('\n', out);
}

static void man_command(const cli_command *command, FILE *out) {
    fprintf(out, ".SS nibble %s ", command->name);
    put_troff(command->usage, out);
    fputs("\n", out);
    put_troff(command->summary, out);
    fputs(".\n", out);
    if (command->details)
        man_details(command->details, out);
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_command_takes(command, &cli_options[i]) && !(cli_options[i].groups & CLI_COMMON))
            man_option(&cli_options[i], out);
}

static void man_compat(FILE *out) {
    for (size_t i = 0; i < cli_n_compat; i++) {
        const cli_compat *h = &cli_compat_rows[i];
        char flag[64] = "";
        for (size_t o = 0; h->kind == COMPAT_IS_OPTION && o < cli_n_option; o++)
            if (cli_options[o].offset == h->offset)
                cli_option_flag(&cli_options[o], flag, sizeof flag);
        fputs(".TP\n.B ", out);
        put_troff(h->flags, out);
        fputc('\n', out);
        put_troff(flag[0] ? "as " : h->kind == COMPAT_IS_IGNORED ? "ignored: " : "not taken: ", out);
        put_troff(flag[0] ? flag : h->text, out);
        fputc('\n', out);
    }
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
    fputs(".SH FLAGS OF OTHER PROGRAMS\nFlags of llama.cpp's programs are accepted, ignored with a note on "
          "standard error, or refused with a hint what to use instead.\n",
          out);
    man_compat(out);
    fputs(".SH EXIT STATUS\n0 done, 1 failed while running, 2 wrong usage, 3 the plan does not fit the "
          "budget, 4 the "
          "model is damaged or unsupported, 5 the device is unavailable, 130 interrupted, 143 ended by "
          "SIGTERM (129 by SIGHUP). A signal ends a command within a fraction of a second, a second one at "
          "once.\n.PP\nWith \\fB\\-\\-json\\fR a command that fails or is interrupted prints {\"error\": "
          "{\"status\": ..., \"message\": ...}, ...}: status is failed, usage, nofit, model, device, nomem, "
          "io, "
          "notfound or cancelled, and what was made until then stands beside error (text and tokens of "
          "run, rows of bench, the chunks or tasks that eval has scored).\n"
          ".SH ENVIRONMENT\nEvery option but --models can be set as NIBBLE_ and its name in capitals "
          "(NIBBLE_RAM=2G); a "
          "flag "
          "wins.\n.TP\n.B NIBBLE_MODELS\nthe folder of models; else $XDG_DATA_HOME/nibble/models\n"
          ".TP\n.B HF_TOKEN\nthe token for models of the Hugging Face hub that are not public; else what "
          "$HF_TOKEN_PATH or $HF_HOME/token holds\n"
          ".TP\n.B HF_ENDPOINT\nthe address of another hub than https://huggingface.co\n"
          ".TP\n.B HF_HOME\nwhere Hugging Face's programs keep what they fetch (in hub/, else "
          "$HF_HUB_CACHE): it "
          "is looked at, and left as it is; else ~/.cache/huggingface\n"
          ".TP\n.B HF_HUB_OFFLINE\n1: as --offline\n"
          ".TP\n.B NIBBLE_ISA\nuse no more than this one of the kernels listed by \\fBnibble hw\\fR: ref, "
          "avx2, avx512\n"
          ".TP\n.B NIBBLE_CPU\nact as a processor with no more than these features, of those listed by "
          "\\fBnibble hw\\fR: x86-64 is none of them, avx2,avx_vnni is two\n"
          ".TP\n.B NO_COLOR\nno colours\n"
          ".SH FILES\n.TP\n.I $XDG_STATE_HOME/nibble/history\nwhat was typed in \\fBnibble chat\\fR, the "
          "newest 1000 lines; else ~/.local/state/nibble/history\n"
          ".TP\n.I ~/.editrc\nkeys of the line editor, see editrc(5)\n",
          out);
}
