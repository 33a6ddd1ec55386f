// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: the test program runs itself once a rank, with a role. Parent and ranks talk in lines over pipes.
#pragma once

#include "ranks.h"

#include <map>
#include <set>
#include <string>
#include <sys/types.h>
#include <vector>

namespace comm_test {

// In the child.
class ProcessRank {
  public:
    int rank = 0, size = 0;
    quoit_comm_t *comm = nullptr;
    quoit_status_t create(int timeout_ms); // sets comm
    const char *argument(size_t index) const;
    void say(const char *format, ...) __attribute__((format(printf, 2, 3)));
    void listen(const char *line); // wait for a line; ends the process when the parent is gone

  private:
    friend int run_role(const std::map<std::string, int (*)(ProcessRank &)> &roles);
    std::vector<std::string> arguments_;
};

bool is_process_rank();
int run_role(const std::map<std::string, int (*)(ProcessRank &)> &roles);

// In the parent. What still runs at the end is killed. networks: for each rank the path of the network namespace that it runs in.
class Processes {
  public:
    Processes(const std::string &role, const std::vector<int> &host_of, const std::vector<std::string> &arguments = {}, const std::string &store = "",
              const std::vector<std::string> &environment = {}, const std::vector<std::string> &networks = {});
    ~Processes();
    Processes(const Processes &) = delete;
    Processes &operator=(const Processes &) = delete;
    int size() const { return static_cast<int>(children_.size()); }
    pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)].pid; }
    void kill(int rank, int signal);
    void tell(int rank, const std::string &line);
    // What follows the word on the first line that begins with it; "" after the limit.
    std::string wait_line(int rank, const std::string &word, double limit_s);
    // Exit status, 1000 + signal, or -1 after the limit.
    int wait_exit(int rank, double limit_s);
    const std::string &output(int rank) const { return children_[static_cast<size_t>(rank)].output; }
    std::string host_name() const;

  private:
    struct Child {
        pid_t pid = -1;
        int in = -1, out = -1;
        std::string output;
        int status = -1;
    };
    void read_all(int wait_ms);
    std::vector<Child> children_;
    std::string store_;
    bool own_store_;
};

std::string temporary_path(const std::string &name);

} // namespace comm_test
