/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launcher of bench_allreduce -n N. Each rank is a fork and exec of this program, so that no state of the library is ever shared
 * by fork. A rank writes the text of its failure into a pipe of its own (--report-descriptor); the launcher waits on the pipes and
 * on a signalfd, and keeps one deadline: set when the first rank fails or a signal comes, after it the rest is killed.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_CAPACITY = 2048, GRACE_MS = 10000, KILL_MS = 3000 };

typedef struct child {
    pid_t pid;    /* 0: not running (any more) */
    int report;   /* read end of its pipe, -1 when closed */
    int order;    /* 1 for the first that failed, 0: has not failed */
    int status;   /* from waitpid */
    size_t length;
    char text[TEXT_CAPACITY]; /* what it reported */
} child_t;

typedef struct launcher {
    int ranks, running, failed;
    child_t *child;       /* [ranks] */
    char directory[192];  /* private, removed at the end */
    int signals;          /* signalfd */
    sigset_t before;      /* mask to give to children */
    int stopped_by;       /* signal that ended the run, 0 */
    int64_t deadline;     /* ms, 0: none */
    bool terminated;      /* SIGTERM has been sent; next comes SIGKILL */
} launcher_t;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void send_all(const launcher_t *launcher, int signal)
{
    for (int rank = 0; rank < launcher->ranks; rank++) {
        if (launcher->child[rank].pid > 0)
            kill(launcher->child[rank].pid, signal);
    }
}

/* In the child: restore what the launcher changed, die with it, execute. */
static void execute(const launcher_t *launcher, int rank, int report, int argc, char **argv, pid_t parent)
{
    char numbers[3][16], store[224];
    char **arguments = calloc((size_t)argc + 9, sizeof *arguments);
    if (arguments == NULL)
        _exit(127);
    int count = 0;
    arguments[count++] = argv[0];
    for (int i = 1; i < argc; i++) { /* all but -n N */
        if (strcmp(argv[i], "-n") == 0 || strcmp(argv[i], "--ranks") == 0)
            i++;
        else if (strncmp(argv[i], "--ranks=", 8) != 0)
            arguments[count++] = argv[i];
    }
    snprintf(numbers[0], sizeof numbers[0], "%d", rank);
    snprintf(numbers[1], sizeof numbers[1], "%d", launcher->ranks);
    snprintf(numbers[2], sizeof numbers[2], "%d", report);
    snprintf(store, sizeof store, "file://%s/store", launcher->directory);
    const char *own[] = {"--rank", numbers[0], "--size", numbers[1], "--store", store, "--report-descriptor", numbers[2]};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        arguments[count++] = (char *)own[i];
    sigprocmask(SIG_SETMASK, &launcher->before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    execv("/proc/self/exe", arguments);
    dprintf(report, "cannot execute %s: %s", argv[0], strerror(errno));
    _exit(127);
}

static bool start_child(launcher_t *launcher, int rank, int argc, char **argv)
{
    int ends[2];
    pid_t parent = getpid();
    child_t *child = &launcher->child[rank];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        fprintf(stderr, "bench_allreduce: cannot make a pipe for rank %d: %s\n", rank, strerror(errno));
        return false;
    }
    child->pid = fork();
    if (child->pid == 0) {
        fcntl(ends[1], F_SETFD, 0);
        execute(launcher, rank, ends[1], argc, argv, parent);
    }
    close(ends[1]);
    if (child->pid < 0) {
        fprintf(stderr, "bench_allreduce: cannot start rank %d of %d: %s\n", rank, launcher->ranks, strerror(errno));
        child->pid = 0;
        close(ends[0]);
        return false;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    child->report = ends[0];
    launcher->running++;
    return true;
}

static void read_report(child_t *child)
{
    char spill[256];
    for (;;) {
        size_t room = sizeof child->text - 1 - child->length;
        ssize_t got = room > 0 ? read(child->report, child->text + child->length, room) : read(child->report, spill, sizeof spill);
        if (got > 0) {
            child->length += room > 0 ? (size_t)got : 0;
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0) {
            close(child->report);
            child->report = -1;
        }
        child->text[child->length] = '\0';
        return;
    }
}

static void set_deadline(launcher_t *launcher, int64_t in_ms)
{
    if (launcher->deadline == 0)
        launcher->deadline = now_ms() + in_ms;
}

static void reap(launcher_t *launcher)
{
    for (int rank = 0; rank < launcher->ranks; rank++) {
        child_t *child = &launcher->child[rank];
        int status;
        if (child->pid <= 0 || waitpid(child->pid, &status, WNOHANG) != child->pid)
            continue;
        child->pid = 0;
        child->status = status;
        launcher->running--;
        if (child->report >= 0)
            read_report(child);
        if (status == 0)
            continue;
        child->order = ++launcher->failed;
        set_deadline(launcher, GRACE_MS);
    }
}

static void take_signals(launcher_t *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        launcher->stopped_by = (int)info.ssi_signo;
        send_all(launcher, (int)info.ssi_signo);
        set_deadline(launcher, KILL_MS);
    }
}

/* The deadline is over: ask, then kill. */
static void press(launcher_t *launcher)
{
    send_all(launcher, launcher->terminated ? SIGKILL : SIGTERM);
    launcher->terminated = true;
    launcher->deadline = now_ms() + KILL_MS;
}

static void watch(launcher_t *launcher)
{
    struct pollfd *polls = calloc((size_t)launcher->ranks + 1, sizeof *polls);
    while (launcher->running > 0) {
        int64_t wait = 1000;
        if (launcher->deadline > 0) {
            wait = launcher->deadline - now_ms();
            if (wait <= 0) {
                press(launcher);
                continue;
            }
        }
        int count = 0;
        if (polls != NULL) {
            polls[count++] = (struct pollfd){.fd = launcher->signals, .events = POLLIN};
            for (int rank = 0; rank < launcher->ranks; rank++)
                polls[count++] = (struct pollfd){.fd = launcher->child[rank].report, .events = POLLIN};
        }
        poll(polls, (nfds_t)count, wait < 1000 ? (int)wait : 1000);
        take_signals(launcher);
        for (int rank = 0; rank < launcher->ranks; rank++) {
            if (launcher->child[rank].report >= 0)
                read_report(&launcher->child[rank]);
        }
        reap(launcher);
    }
    free(polls);
}

static void print_child(int rank, const child_t *child)
{
    char how[96];
    if (WIFSIGNALED(child->status))
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(child->status), strsignal(WTERMSIG(child->status)));
    else
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(child->status));
    fprintf(stderr, "bench_allreduce: rank %d %s%s%s\n", rank, how, child->length > 0 ? ": " : "", child->text);
}

/* In the order in which they failed. */
static void print_failures(const launcher_t *launcher)
{
    for (int order = 1; order <= launcher->failed; order++) {
        for (int rank = 0; rank < launcher->ranks; rank++) {
            const child_t *child = &launcher->child[rank];
            if (child->order != order)
                continue;
            if (order == 1 && launcher->failed > 1)
                fprintf(stderr, "bench_allreduce: %d of %d ranks failed, rank %d first\n", launcher->failed, launcher->ranks, rank);
            print_child(rank, child);
        }
    }
}

static bool prepare(launcher_t *launcher, int ranks)
{
    sigset_t mask;
    const char *base = getenv("TMPDIR");
    launcher->ranks = ranks;
    launcher->child = calloc((size_t)ranks, sizeof *launcher->child);
    if (launcher->child == NULL) {
        fprintf(stderr, "bench_allreduce: out of memory for %d ranks\n", ranks);
        return false;
    }
    for (int rank = 0; rank < ranks; rank++)
        launcher->child[rank].report = -1;
    if (base == NULL || *base != '/' || strlen(base) > 128)
        base = "/tmp";
    snprintf(launcher->directory, sizeof launcher->directory, "%s/quoit-bench-XXXXXX", base);
    if (mkdtemp(launcher->directory) == NULL) {
        fprintf(stderr, "bench_allreduce: cannot make a directory in %s for the ranks to meet in: %s\n", base, strerror(errno));
        launcher->directory[0] = '\0';
        return false;
    }
    sigemptyset(&mask);
    const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaddset(&mask, signals[i]);
    sigprocmask(SIG_BLOCK, &mask, &launcher->before);
    launcher->signals = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (launcher->signals < 0) {
        fprintf(stderr, "bench_allreduce: signalfd: %s\n", strerror(errno));
        return false;
    }
    return true;
}

static void clean_up(launcher_t *launcher)
{
    static const char *const leavings[] = {"store", "store.lock"};
    char path[224];
    for (size_t i = 0; launcher->directory[0] != '\0' && i < sizeof leavings / sizeof leavings[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", launcher->directory, leavings[i]);
        unlink(path);
    }
    if (launcher->directory[0] != '\0' && rmdir(launcher->directory) != 0)
        fprintf(stderr, "bench_allreduce: cannot remove %s: %s\n", launcher->directory, strerror(errno));
    if (launcher->signals >= 0)
        close(launcher->signals);
    for (int rank = 0; launcher->child != NULL && rank < launcher->ranks; rank++) {
        if (launcher->child[rank].report >= 0)
            close(launcher->child[rank].report);
    }
    free(launcher->child);
    sigprocmask(SIG_SETMASK, &launcher->before, NULL);
}

int launch_ranks(int ranks, int argc, char **argv)
{
    launcher_t launcher = {.signals = -1};
    int status = 1;
    sigprocmask(SIG_SETMASK, NULL, &launcher.before);
    if (!prepare(&launcher, ranks))
        goto out;
    for (int rank = 0; rank < ranks; rank++) {
        if (start_child(&launcher, rank, argc, argv))
            continue;
        launcher.failed++;
        launcher.deadline = now_ms();
        break;
    }
    watch(&launcher);
    status = launcher.failed > 0;
    if (launcher.stopped_by != 0) {
        fprintf(stderr, "bench_allreduce: stopped by signal %d (%s)\n", launcher.stopped_by, strsignal(launcher.stopped_by));
        status = 128 + launcher.stopped_by;
    } else {
        print_failures(&launcher);
    }
out:
    clean_up(&launcher);
    return status;
}
