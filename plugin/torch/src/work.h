/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of an operation, as PyTorch wants it.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "communicator.h"
#include "torch_version.h"

namespace quoit_torch {

/** What an operation is called: by PyTorch's enumeration, in error texts, and in the profiler. */
struct Operation {
    c10d::OpType type;
    const char *name;
    const char *title;
};

/** A group's hook that is told of each operation's end (Backend::registerOnCompletionHook). */
struct CompletionHook {
    std::function<void(std::shared_ptr<c10d::WorkInfo>)> call;
    std::atomic<int> pending{0}; /* operations whose end it has not been told of */
};

/**
 * Whoever waits for a Work works for it. Somebody else does (the Watcher) when its future was asked for or when it was dropped
 * before it ended. Several threads may wait: one works at a time, the others sleep.
 */
class QuoitWork : public c10d::Work {
public:
    using Future = c10::ivalue::Future;
    /** An operation held back until the group of coalesced operations ends: starts it, adds to the flight. */
    using Start = std::function<void(Flight &)>;

    QuoitWork(int rank, const Operation &operation, uint64_t sequence, std::optional<std::vector<at::Tensor>> inputs,
              std::vector<at::Tensor> results, Flight &&flight);
    ~QuoitWork() override;

    /** Before anybody else has it: its limit, and a hook to tell of its end, or null. */
    void set_limit(std::chrono::milliseconds limit) { limit_ = limit; }
    void set_hook(std::shared_ptr<CompletionHook> hook);

    bool isCompleted() override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    void synchronize() override;
    /** Waits: the tensors are the CPU's, and its "current stream" is the calling thread. */
    void blockCurrentStream() override;
    void abort() override;
    c10::intrusive_ptr<Future> getFuture() override;
    c10::intrusive_ptr<Future> getFutureResult() override;
    uint64_t getSequencenumber() const override { return sequence_; }
    /** Milliseconds from its start to its end. */
    float getDuration() const override;
    std::chrono::milliseconds getTimeout() const QUOIT_OVERRIDE_2_14 { return limit_; }

    /** Work for it at most slice_ms (0: only look); true when it has ended. Any thread, not under the interpreter's lock. */
    bool poke(int slice_ms);

    bool has_ended() const { return done_.load(std::memory_order_acquire); }

    /** While operations are coalesced: more of them, and their outputs. */
    void add(Flight &&flight, std::vector<at::Tensor> results);
    void add(Start start);

    void release_resources() override; /* by c10 when the last reference goes */

private:
    using Clock = std::chrono::steady_clock;

    void let_go();
    void tell_hook();
    void own();
    void disown();
    void start_held_back();
    void complete();
    void mark_future();
    [[noreturn]] void give_up(std::chrono::milliseconds timeout);

    const char *name_;
    const uint64_t sequence_;
    const c10::intrusive_ptr<Communicator> comm_;
    std::atomic<bool> done_{false};
    std::atomic<bool> owned_{false}; /* the thread that set it may touch the three below */
    Flight flight_;
    std::vector<Start> held_back_;
    std::exception_ptr start_error_;
    int source_ = -1;
    std::vector<at::Tensor> results_;
    std::chrono::milliseconds limit_{0};
    const Clock::time_point started_ = Clock::now();
    Clock::time_point finished_; /* once done_ */
    std::shared_ptr<CompletionHook> hook_;
    std::mutex future_mutex_;
    c10::intrusive_ptr<Future> future_;
    bool future_marked_ = false;
};

/**
 * Whether the futures that the calling thread asks for are done when it gets them, so that what it hangs on them runs at once, on itself, as
 * it does on NCCL's. Returns what it was before.
 */
bool set_futures_done(bool wanted);

} // namespace quoit_torch
