// SPDX-License-Identifier: Apache-2.0
// What the tests of failures share: a small allreduce, and what a rank says of how an operation ended.
#pragma once

#include "processes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace comm_test {

using Hosts = std::vector<int>;

// After the death of a peer, or an abort: 1 s is promised; the rest is for a machine that has other things to do.
inline double promise_s() { return has_sanitizer() ? 4.0 : std::max(1.5, slow()); }

inline std::string print_hosts(const testing::TestParamInfo<Hosts> &info)
{
    std::string text = "ranks_" + name_of(info.param);
    for (char &each : text)
        if (each == '+') each = '_';
    return text + "_" + std::to_string(info.index);
}

inline quoit_status_t allreduce(quoit_comm_t *comm, size_t count = 1000, int timeout_ms = 0)
{
    std::vector<float> send(count, 1), recv(count);
    quoit_call_t call = QUOIT_CALL_INIT;
    call.timeout_ms = timeout_ms;
    return quoit_allreduce(comm, send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, &call, nullptr);
}

inline void report(ProcessRank &self, const char *what, quoit_status_t status)
{
    self.say("%s %.6f %d %s", what, seconds(), status, status == QUOIT_OK ? "" : quoit_last_error());
}

struct Outcome {
    double at = 0;
    int status = 1;
    std::string text;
};

inline Outcome outcome(Processes &ranks, int rank, const std::string &what, double limit_s = 20)
{
    Outcome one;
    std::string line = ranks.wait_line(rank, what, limit_s);
    int used = 0;
    EXPECT_EQ(sscanf(line.c_str(), "%lf %d %n", &one.at, &one.status, &used), 2) << "rank " << rank << " did not say '" << what << "' but:\n" << ranks.output(rank);
    one.text = line.substr(std::min(line.size(), static_cast<size_t>(used)));
    return one;
}

inline bool names(const std::string &text, int rank, pid_t pid)
{
    return text.find("rank " + std::to_string(rank) + " (") != std::string::npos && text.find("pid " + std::to_string(pid)) != std::string::npos;
}

inline size_t count_of(const std::string &text, const std::string &part)
{
    size_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at++) count++;
    return count;
}

} // namespace comm_test
