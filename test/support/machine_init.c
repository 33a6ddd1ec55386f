/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first process of a machine that machine.py starts: loads the modules of /modules, makes a root out of the outer machine's (shared
 * read-only) and a tmpfs that takes what is written, and runs its arguments there. Nothing here ends well: the machine is killed from
 * outside. What goes wrong is said on the console, and the machine stops.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARE "trans=virtio,version=9p2000.L,msize=512000,cache=loose"

static void stop(const char *what, const char *which)
{
    printf("machine: %s %s: %s\n", what, which, strerror(errno));
    sleep(1); /* the console is slow */
    reboot(RB_AUTOBOOT); /* qemu was told to end then */
    _exit(1);
}

static void make_folder(const char *path)
{
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        stop("mkdir", path);
}

static void attach(const char *source, const char *target, const char *type, unsigned long flags, const char *options)
{
    make_folder(target);
    if (mount(source, target, type, flags, options) != 0)
        stop("mount", target);
}

/* Paths of modules, a line each, those that others need first. */
static void load_modules(const char *list)
{
    char line[512];
    FILE *file = fopen(list, "re");
    if (file == NULL)
        stop("open", list);
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        int fd = open(line, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            stop("open", line);
        if (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST)
            printf("machine: module %s: %s\n", line, strerror(errno)); /* some are for processors that this is not */
        close(fd);
    }
    fclose(file);
}

static void make_root(void)
{
    attach("root", "/outer", "9p", MS_RDONLY, SHARE);
    attach("tmpfs", "/written", "tmpfs", 0, "size=75%");
    make_folder("/written/files");
    make_folder("/written/work");
    attach("overlay", "/root", "overlay", 0, "lowerdir=/outer,upperdir=/written/files,workdir=/written/work");
    attach("proc", "/root/proc", "proc", 0, NULL);
    attach("sysfs", "/root/sys", "sysfs", 0, NULL);
    attach("devtmpfs", "/root/dev", "devtmpfs", 0, NULL);
    attach("devpts", "/root/dev/pts", "devpts", 0, NULL);
    attach("tmpfs", "/root/dev/shm", "tmpfs", 0, NULL);
    attach("tmpfs", "/root/run", "tmpfs", 0, NULL);
    if (chroot("/root") != 0 || chdir("/") != 0)
        stop("chroot", "/root");
    if (symlink("/proc/self/fd", "/dev/fd") != 0 && errno != EEXIST)
        stop("symlink", "/dev/fd");
}

int main(int argc, char **argv)
{
    attach("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    int console = open("/dev/console", O_RDWR);
    for (int fd = 0; console >= 0 && fd < 3; fd++)
        dup2(console, fd);
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc < 2) {
        errno = EINVAL;
        stop("the kernel's command line", "names no program");
    }
    load_modules("/modules");
    make_root();
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        execv(argv[1], argv + 1);
        stop("exec", argv[1]);
    }
    int status = 0;
    for (pid_t ended = 0; ended != pid;) /* children that nobody else waits for as well */
        ended = wait(&status);
    errno = ECHILD;
    stop("ended", argv[1]);
}
