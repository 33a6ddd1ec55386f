// SPDX-License-Identifier: Apache-2.0
#include "processes.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace comm_test {

// ------------------------------------------------------------------ child

bool is_process_rank() { return getenv("COMM_TEST_ROLE") != nullptr; }

const char *ProcessRank::argument(size_t index) const { return index < arguments_.size() ? arguments_[index].c_str() : ""; }

quoit_status_t ProcessRank::create(int timeout_ms)
{
    quoit_store_t *store = nullptr;
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms;
    quoit_status_t status = quoit_store_open(getenv("COMM_TEST_STORE"), rank, size, 30000, &store);
    if (status == QUOIT_OK) status = quoit_comm_create(store, rank, size, &config, &comm);
    if (status != QUOIT_OK) say("create: %s", quoit_last_error());
    quoit_store_close(store);
    const char *hosts = getenv("COMM_TEST_HOSTS");
    if (status == QUOIT_OK && atoi(hosts) > 0 && quoit_comm_hosts(comm) != atoi(hosts)) {
        say("create: %d hosts instead of %s", quoit_comm_hosts(comm), hosts);
        return QUOIT_ERR_INTERNAL;
    }
    return status;
}

void ProcessRank::say(const char *format, ...)
{
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
    for (int i = 0; i < length; i++)
        if (line[i] == '\n') line[i] = ' ';
    line[length++] = '\n';
    if (write(1, line, static_cast<size_t>(length)) < 0) _exit(90);
}

void ProcessRank::listen(const char *line)
{
    std::string wanted = std::string(line) + "\n", heard;
    char byte;
    for (;;) {
        ssize_t got = read(0, &byte, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) _exit(91);
        heard += byte;
        if (heard.size() >= wanted.size() && heard.compare(heard.size() - wanted.size(), wanted.size(), wanted) == 0) return;
    }
}

int run_role(const std::map<std::string, int (*)(ProcessRank &)> &roles)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ProcessRank self;
    self.rank = atoi(getenv("COMM_TEST_RANK"));
    self.size = atoi(getenv("COMM_TEST_SIZE"));
    std::string all = getenv("COMM_TEST_ARGUMENTS");
    for (size_t at = 0; at < all.size();) {
        size_t end = all.find('\t', at);
        self.arguments_.push_back(all.substr(at, end - at));
        at = end + 1;
    }
    auto role = roles.find(getenv("COMM_TEST_ROLE"));
    if (role == roles.end()) return 92;
    be_late(self.rank);
    int result = role->second(self);
    be_late(self.rank);
    quoit_comm_destroy(self.comm);
    return result;
}

// ------------------------------------------------------------------ parent

std::string temporary_path(const std::string &name)
{
    static int number;
    const char *directory = getenv("TMPDIR");
    return std::string(directory ? directory : "/tmp") + "/quoit-test-" + name + "-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

Processes::Processes(const std::string &role, const std::vector<int> &host_of, const std::vector<std::string> &arguments, const std::string &store,
                     const std::vector<std::string> &environment, const std::vector<std::string> &networks)
    : children_(host_of.size()), store_(store.empty() ? temporary_path("store") : store), own_store_(store.empty())
{
    std::string joined;
    for (const auto &each : arguments) joined += each + "\t";
    signal(SIGPIPE, SIG_IGN);
    for (size_t rank = 0; rank < children_.size(); rank++) {
        std::vector<std::string> variables = environment;
        for (char **each = environ; *each; each++) variables.emplace_back(*each);
        variables.push_back("COMM_TEST_ROLE=" + role);
        variables.push_back("COMM_TEST_RANK=" + std::to_string(rank));
        variables.push_back("COMM_TEST_SIZE=" + std::to_string(host_of.size()));
        variables.push_back("COMM_TEST_HOSTS=" + std::to_string(hosts_of(host_of)));
        variables.push_back("COMM_TEST_STORE=file://" + store_);
        variables.push_back("COMM_TEST_ARGUMENTS=" + joined);
        variables.push_back("QUOIT_HOST_LABEL=host " + std::to_string(host_of[rank]));
        std::vector<char *> pointers;
        for (auto &each : variables) pointers.push_back(each.data());
        pointers.push_back(nullptr);
        int in[2], out[2];
        if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
            ADD_FAILURE() << "pipe2: " << strerror(errno);
            return;
        }
        char path[] = "/proc/self/exe", *words[] = {path, nullptr};
        pid_t pid = fork();
        if (pid == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            int network = networks.empty() ? -1 : open(networks[rank].c_str(), O_RDONLY | O_CLOEXEC);
            if (!networks.empty() && (network < 0 || setns(network, CLONE_NEWNET) != 0)) _exit(94);
            execve(path, words, pointers.data());
            _exit(93);
        }
        close(in[0]);
        close(out[1]);
        fcntl(out[0], F_SETFL, O_NONBLOCK);
        children_[rank].pid = pid;
        children_[rank].in = in[1];
        children_[rank].out = out[0];
    }
}

Processes::~Processes()
{
    for (Child &child : children_) {
        if (child.pid > 0 && child.status < 0) {
            ::kill(child.pid, SIGKILL);
            waitpid(child.pid, nullptr, 0);
        }
        close(child.in);
        close(child.out);
    }
    if (own_store_) unlink(store_.c_str());
}

void Processes::kill(int rank, int signal)
{
    Child &child = children_[static_cast<size_t>(rank)];
    if (child.status < 0) ::kill(child.pid, signal);
}

void Processes::tell(int rank, const std::string &line)
{
    std::string bytes = line + "\n";
    ssize_t written = write(children_[static_cast<size_t>(rank)].in, bytes.data(), bytes.size());
    (void)written; /* it may have ended */
}

void Processes::read_all(int wait_ms)
{
    std::vector<pollfd> ready;
    for (Child &child : children_) ready.push_back({child.out, POLLIN, 0});
    poll(ready.data(), ready.size(), wait_ms);
    bool any = false;
    for (Child &child : children_) {
        char bytes[4096];
        ssize_t got;
        while ((got = read(child.out, bytes, sizeof bytes)) > 0) {
            child.output.append(bytes, static_cast<size_t>(got));
            any = true;
        }
    }
    if (!any && wait_ms > 0) usleep(1000); /* an ended child's pipe is always ready */
}

std::string Processes::wait_line(int rank, const std::string &word, double limit_s)
{
    Child &child = children_[static_cast<size_t>(rank)];
    double until = seconds() + limit_s * (has_sanitizer() ? 3 : 1);
    for (;;) {
        for (size_t at = 0, end; (end = child.output.find('\n', at)) != std::string::npos; at = end + 1) {
            std::string line = child.output.substr(at, end - at);
            if (line == word) return "yes";
            if (line.compare(0, word.size() + 1, word + " ") == 0) return line.substr(word.size() + 1);
        }
        if (seconds() > until || (child.status >= 0 && waitpid(child.pid, nullptr, WNOHANG) < 0)) break;
        int status;
        if (child.status < 0 && waitpid(child.pid, &status, WNOHANG) == child.pid)
            child.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        read_all(20);
    }
    ADD_FAILURE() << "rank " << rank << " (exit " << child.status << ") did not say '" << word << "'; it said:\n" << child.output;
    return "";
}

int Processes::wait_exit(int rank, double limit_s)
{
    Child &child = children_[static_cast<size_t>(rank)];
    double until = seconds() + limit_s * (has_sanitizer() ? 3 : 1);
    while (child.status < 0 && seconds() < until) {
        int status;
        if (waitpid(child.pid, &status, WNOHANG) == child.pid)
            child.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        read_all(5);
    }
    return child.status;
}

std::string Processes::host_name() const
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

} // namespace comm_test
