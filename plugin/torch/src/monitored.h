/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The barrier that tells who is missing.
 *
 * Every rank reports to rank 0 and waits for its verdict; rank 0 waits for the reports, in rank order, until the time is over.
 * Messages have a tag of their own and carry the number of the reporting rank's attempt, and the verdict repeats it: a verdict
 * that comes after a rank gave up is not taken for that of a later attempt.
 *
 * A missing rank is an error of the barrier, not of the group: receives that were not served stay posted, for the next barrier,
 * instead of running into a deadline that would abort the communicator.
 */
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "communicator.h"

namespace quoit_torch {

class MonitoredBarrier {
public:
    MonitoredBarrier(c10::intrusive_ptr<Communicator> comm, int rank, int size);

    /** Throws when ranks did not come. With wait_all_ranks rank 0 names all of them, else the first. */
    void run(std::chrono::milliseconds timeout, bool wait_all_ranks);

    /** Let posted receives go, which never end by themselves, before the communicator is closed. True if there were some. */
    bool release();

private:
    using Clock = std::chrono::steady_clock;

    /** A message {attempt, verdict} that is on its way. */
    struct Message {
        at::Tensor words;
        Flight flight;
    };

    void lead(std::chrono::milliseconds timeout, bool wait_all_ranks);
    void follow(std::chrono::milliseconds timeout);
    void send(int peer, int64_t attempt, int64_t verdict);
    void expect(int peer);
    bool await(int peer, Clock::time_point end);

    const c10::intrusive_ptr<Communicator> comm_;
    const int rank_, size_;
    std::mutex mutex_; /* one barrier at a time */
    int64_t attempt_ = 0;
    std::map<int, Message> expected_; /* receives that are posted, by peer */
    std::vector<std::vector<int64_t>> received_;
    std::string reason_; /* why the newest await() failed, beside time */
};

} // namespace quoit_torch
