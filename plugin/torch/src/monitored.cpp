/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The monitored barrier; see monitored.h. The texts are those that users of PyTorch's own monitored barrier look for.
 */
#include "monitored.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "errors.h"
#include "interpreter.h"
#include "launch.h"

namespace quoit_torch {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kTag = 0xfffffff0u; /* users' tags are not negative ints, so they end at 0x7fffffff */
constexpr int kForEver = 7200 * 60 * 1000;
constexpr int64_t kPassed = 1, kFailed = 0;
constexpr const char *kName = "monitored_barrier";

[[noreturn]] void fail(const std::string &text)
{
    C10_THROW_ERROR(DistBackendError, text);
}

std::string join(const std::vector<int> &ranks)
{
    std::string text;
    for (int rank : ranks)
        text += (text.empty() ? "" : ", ") + std::to_string(rank);
    return text;
}

} // namespace

MonitoredBarrier::MonitoredBarrier(c10::intrusive_ptr<Communicator> comm, int rank, int size)
    : comm_(std::move(comm)), rank_(rank), size_(size)
{
}

void MonitoredBarrier::run(milliseconds timeout, bool wait_all_ranks)
{
    std::lock_guard<std::mutex> lock(mutex_);
    attempt_++;
    reason_.clear();
    if (size_ == 1)
        return;
    if (rank_ == 0)
        lead(timeout, wait_all_ranks);
    else
        follow(timeout);
}

bool MonitoredBarrier::release()
{
    std::lock_guard<std::mutex> lock(mutex_);
    const bool some = !expected_.empty();
    expected_.clear(); /* what is not finished goes over to the communicator */
    return some;
}

void MonitoredBarrier::send(int peer, int64_t attempt, int64_t verdict)
{
    Communicator::Use use(*comm_, Communicator::Use::kNew);
    use.demand(kName);
    Message message = {at::empty({2}, at::kLong), {}};
    message.flight.comm = comm_;
    message.flight.operation = kName;
    int64_t *words = message.words.mutable_data_ptr<int64_t>();
    words[0] = attempt;
    words[1] = verdict;
    message.flight.keep.push_back(message.words);
    quoit_call_t call = QUOIT_CALL_INIT;
    call.timeout_ms = kForEver;
    quoit_request_t *request = nullptr;
    check_call(quoit_send(use.comm(), words, 2, QUOIT_I64, peer, kTag, &call, &request), kName);
    message.flight.requests.push_back(request);
    message.flight.advance(0); /* if it needs longer, the communicator ends it */
}

/** Post the receive from `peer` unless an earlier barrier did. */
void MonitoredBarrier::expect(int peer)
{
    if (expected_.count(peer) != 0)
        return;
    Communicator::Use use(*comm_, Communicator::Use::kNew);
    use.demand(kName);
    at::Tensor words = at::empty({2}, at::kLong);
    quoit_call_t call = QUOIT_CALL_INIT;
    call.timeout_ms = kForEver;
    quoit_request_t *request = nullptr;
    check_call(quoit_recv(use.comm(), words.mutable_data_ptr<int64_t>(), 2, QUOIT_I64, peer, kTag, &call, &request), kName);
    Flight flight;
    flight.comm = comm_;
    flight.operation = kName;
    flight.keep.push_back(words);
    flight.requests.push_back(request);
    expected_.emplace(peer, Message{words, std::move(flight)});
}

/** True when the message of `peer` is in received_.back(); false at `end`, or with reason_ set when it cannot come. */
bool MonitoredBarrier::await(int peer, Clock::time_point end)
{
    constexpr int64_t kSliceMs = 50;
    const auto entry = expected_.find(peer);
    Message &message = entry->second;
    for (;;) {
        const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now()).count();
        if (message.flight.advance(static_cast<int>(std::clamp<int64_t>(left, 0, kSliceMs))))
            break;
        if (left <= 0)
            return false;
        check_signals();
    }
    try {
        if (std::exception_ptr error = message.flight.settle())
            std::rethrow_exception(error);
        const int64_t *words = message.words.const_data_ptr<int64_t>();
        received_.push_back({words[0], words[1]});
    } catch (const c10::Error &error) {
        reason_ = error.what_without_backtrace();
    }
    expected_.erase(entry);
    return reason_.empty();
}

void MonitoredBarrier::lead(milliseconds timeout, bool wait_all_ranks)
{
    if (timeout.count() <= 0)
        fail(c10::str("[Rank 0]: Rank 0 timed out in monitoredBarrier after 0 ms: no time was given"));
    const Clock::time_point start = Clock::now();
    for (int peer = 1; peer < size_; peer++)
        expect(peer);
    std::vector<int> missing;
    std::map<int, int64_t> attempts;
    for (int peer = 1; peer < size_; peer++) {
        const bool hurry = !missing.empty() && !wait_all_ranks; /* one is missing: see only who is here already */
        received_.clear();
        if (await(peer, hurry ? Clock::now() : start + timeout))
            attempts[peer] = received_.back()[0];
        else if (!hurry)
            missing.push_back(peer);
    }
    const std::string reason = reason_;
    for (const auto &[peer, attempt] : attempts)
        send(peer, attempt, missing.empty() ? kPassed : kFailed);
    if (missing.empty())
        return;
    fail(c10::str("[Rank 0]: Rank", missing.size() > 1 ? "s " : " ", join(missing), " failed to pass monitoredBarrier in ",
                  timeout.count(), " ms", reason.empty() ? "" : ": " + reason));
}

void MonitoredBarrier::follow(milliseconds timeout)
{
    /* Rank 0 may have come later and knows more: its verdict is worth some patience beyond the time given. */
    const Clock::time_point end = Clock::now() + timeout + std::min(timeout, milliseconds(1000));
    std::string cause = "it did not answer within " + std::to_string(timeout.count()) + " ms";
    try {
        send(0, attempt_, kPassed);
        for (;;) {
            expect(0);
            received_.clear();
            if (!await(0, end)) {
                if (!reason_.empty())
                    cause = reason_;
                break;
            }
            if (received_.back()[0] < attempt_)
                continue; /* the verdict of an attempt that was given up */
            if (received_.back()[1] == kPassed)
                return;
            cause = "it reports that other ranks are missing";
            break;
        }
    } catch (const c10::Error &error) {
        cause = error.what_without_backtrace();
    }
    fail(c10::str("[Rank ", rank_, "]: Rank ", rank_, " successfully reached monitoredBarrier, but received errors while waiting for "
                  "send/recv from rank 0: ", cause, ". Rank 0 names the ranks at fault."));
}

} // namespace quoit_torch
