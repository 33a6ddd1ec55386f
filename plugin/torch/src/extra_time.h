/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time that operations get on top of their limit for a while (Backend::addEphemeralTimeout): each grant holds from the call that
 * makes it until the first operation begun after it has ended.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace quoit_torch {

class ExtraTime {
public:
    using Milliseconds = std::chrono::milliseconds;

    /** To be dropped when the operation has ended: ends the grants of which it was the first operation. */
    using Lease = std::shared_ptr<void>;

    void grant(Milliseconds time);
    bool is_granted() const { return state_->granted.load(std::memory_order_relaxed); }

    /** An operation begins: the sum of what is granted. */
    Milliseconds begin(Lease *lease);

private:
    struct Grant {
        Milliseconds time;
        uint64_t operation; /* the first one after it; 0: none yet */
    };
    struct State { /* outlives the group while an operation has a lease */
        std::atomic<bool> granted{false};
        std::mutex mutex; /* guards the two below */
        std::vector<Grant> grants;
        uint64_t operations = 0;
    };
    const std::shared_ptr<State> state_ = std::make_shared<State>();
};

} // namespace quoit_torch
