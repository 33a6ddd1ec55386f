/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extra time; see extra_time.h.
 */
#include "extra_time.h"

namespace quoit_torch {

void ExtraTime::grant(Milliseconds time)
{
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->grants.push_back({time, 0});
    state_->granted.store(true, std::memory_order_relaxed);
}

ExtraTime::Milliseconds ExtraTime::begin(Lease *lease)
{
    std::lock_guard<std::mutex> lock(state_->mutex);
    Milliseconds sum{0};
    const uint64_t operation = ++state_->operations;
    bool is_first = false;
    for (Grant &grant : state_->grants) {
        sum += grant.time;
        if (grant.operation == 0) {
            grant.operation = operation;
            is_first = true;
        }
    }
    if (is_first) {
        *lease = Lease(nullptr, [state = state_, operation](void *) {
            std::lock_guard<std::mutex> inner(state->mutex);
            std::erase_if(state->grants, [operation](const Grant &grant) { return grant.operation == operation; });
            state->granted.store(!state->grants.empty(), std::memory_order_relaxed);
        });
    }
    return sum;
}

} // namespace quoit_torch
