// SPDX-License-Identifier: Apache-2.0
#include "restrict.h"

#include "../shm/seccomp.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <linux/capability.h>
#include <map>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace comm_test {

namespace {

bool limit(int resource, rlim_t value)
{
    rlimit limits = {value, value};
    return setrlimit(static_cast<__rlimit_resource>(resource), &limits) == 0;
}

rlim_t address_space()
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%lu", &pages) != 1) pages = 0;
    fclose(file);
    return static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

rlim_t next_descriptor()
{
    int fd = dup(0);
    close(fd);
    return static_cast<rlim_t>(fd);
}

bool deny(std::initializer_list<int> calls, int error)
{
    for (int call : calls)
        if (deny_system_call(call, error)) return false;
    return true;
}

// socket() of this family only.
bool deny_family(unsigned family, int error)
{
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(SYS_socket), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, family, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog filter = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

bool drop_capabilities()
{
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    return syscall(SYS_capset, &header, none) == 0;
}

// Go on as the first process of a new namespace of pids; the old one passes signals' ends and the exit status on.
bool new_pids()
{
    if (unshare(CLONE_NEWPID) != 0) return false;
    pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) _exit(98);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

bool new_mounts() { return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0; }

bool read_only(const char *path)
{
    return mount(path, path, nullptr, MS_BIND, nullptr) == 0 && mount(nullptr, path, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0 &&
           access(path, W_OK) != 0;
}

bool other_user(rlim_t processes)
{
    const uid_t user = 65530;
    if (processes != RLIM_INFINITY && !limit(RLIMIT_NPROC, processes)) return false;
    return setresuid(user, user, user) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0;
}

} // namespace

namespace {

bool write_to(const std::string &path, const std::string &text)
{
    int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(fd);
    return done;
}

} // namespace

std::string memory_group(pid_t pid, size_t bytes)
{
    std::ifstream own("/proc/self/cgroup");
    std::string line, base, file;
    while (std::getline(own, line)) { /* "4:memory:/a/b", or "0::/a/b" of version 2 */
        size_t second = line.find(':', line.find(':') + 1);
        bool first_version = line.find(":memory:") != std::string::npos;
        if (!first_version && (line.compare(0, 3, "0::") != 0 || !base.empty())) continue;
        base = (first_version ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") + line.substr(second + 1);
        file = first_version ? "/memory.limit_in_bytes" : "/memory.max";
        if (first_version) break;
    }
    std::string path = base + "/quoit-test-" + std::to_string(pid);
    if (base.empty() || mkdir(path.c_str(), 0755) != 0) return "";
    if (write_to(path + file, std::to_string(bytes)) && write_to(path + "/cgroup.procs", std::to_string(pid))) return path;
    rmdir(path.c_str());
    return "";
}

bool restrict_process(const std::string &what)
{
    static const std::map<std::string, std::function<bool()>> ways = {
        {"nothing", [] { return true; }},
        {"no memfd_create", [] { return deny({SYS_memfd_create}, EPERM); }},
        {"no pidfd_open", [] { return deny({SYS_pidfd_open}, ENOSYS); }},
        {"no membarrier", [] { return deny({SYS_membarrier}, EPERM); }},
        {"no eventfd2", [] { return deny({SYS_eventfd2}, EPERM); }},
        {"no unix sockets", [] { return deny_family(AF_UNIX, EACCES); }},
        {"no fallocate", [] { return deny({SYS_fallocate}, EOPNOTSUPP); }},
        {"no shared memory left", [] { return deny({SYS_fallocate}, ENOSPC); }},
        {"no ptrace", [] { return drop_capabilities() && deny({SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev}, EPERM); }},
        {"no threads", [] { return deny({SYS_clone3}, ENOSYS) && deny({SYS_clone, SYS_fork, SYS_vfork}, EAGAIN); }},
        {"few processes", [] { return other_user(1); }},
        {"other user", [] { return other_user(RLIM_INFINITY); }},
        {"little address space", [] { return limit(RLIMIT_AS, address_space() + (rlim_t{100} << 20)); }},
        {"address space for one", [] { return limit(RLIMIT_AS, address_space() + (rlim_t{1500} << 20)); }},
        {"small files", [] { return limit(RLIMIT_FSIZE, 1 << 20); }},
        {"locked memory", [] { return drop_capabilities() && limit(RLIMIT_MEMLOCK, 0); }},
        {"no core files", [] { return limit(RLIMIT_CORE, 0); }},
        {"new pids", new_pids},
        {"new ipc", [] { return unshare(CLONE_NEWIPC) == 0; }},
        {"new mounts", new_mounts},
        {"new host name", [] { return unshare(CLONE_NEWUTS) == 0 && sethostname("elsewhere", 9) == 0; }},
        {"new network", [] { return unshare(CLONE_NEWNET) == 0; }},
        {"read-only", [] { return new_mounts() && read_only("/tmp") && read_only("/dev/shm"); }},
    };
    const std::string descriptors = "descriptors "; /* and how many more than are open */
    if (what.compare(0, descriptors.size(), descriptors) == 0)
        return limit(RLIMIT_NOFILE, next_descriptor() + static_cast<rlim_t>(atoi(what.c_str() + descriptors.size())));
    auto way = ways.find(what);
    errno = EINVAL;
    return way != ways.end() && way->second();
}

} // namespace comm_test
