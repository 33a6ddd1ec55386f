/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for operations and telling of their end; see work.h.
 */
#include "work.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

#include "errors.h"
#include "interpreter.h"
#include "watcher.h"

namespace quoit_torch {
namespace {

thread_local bool futures_are_done = false; /* of this thread: getFuture() waits for the end */

} // namespace

using std::chrono::milliseconds;

bool set_futures_done(bool wanted)
{
    return std::exchange(futures_are_done, wanted);
}

QuoitWork::QuoitWork(int rank, const Operation &operation, uint64_t sequence, std::optional<std::vector<at::Tensor>> inputs,
                     std::vector<at::Tensor> results, Flight &&flight)
    : Work(rank, operation.type, operation.title, inputs), name_(operation.name), sequence_(sequence), comm_(flight.comm),
      flight_(std::move(flight)), results_(std::move(results))
{
}

QuoitWork::~QuoitWork()
{
    let_go();
}

void QuoitWork::release_resources()
{
    let_go();
}

/** Nobody holds the Work any more: its flight goes on without it. */
void QuoitWork::let_go()
{
    if (recordFunctionEndCallback_) {
        recordFunctionEndCallback_();
        recordFunctionEndCallback_ = nullptr;
    }
    if (!flight_.requests.empty() && comm_)
        comm_->adopt(std::move(flight_));
    if (comm_)
        comm_->forget(this);
    if (hook_)
        hook_->pending--;
    hook_.reset();
}

void QuoitWork::set_hook(std::shared_ptr<CompletionHook> hook)
{
    hook_ = std::move(hook);
    if (hook_)
        hook_->pending++;
}

/* ---------------------------------------------------------------- working */

bool QuoitWork::poke(int slice_ms)
{
    if (done_.load(std::memory_order_acquire))
        return true;
    if (owned_.exchange(true, std::memory_order_acquire)) {
        if (slice_ms > 0) {
            std::unique_lock<std::mutex> lock(mutex_);
            cv_.wait_for(lock, milliseconds(slice_ms), [this] { return completed_ || !owned_.load(); });
        }
        return done_.load(std::memory_order_acquire);
    }
    if (done_.load(std::memory_order_acquire)) {
        disown();
        return true;
    }
    start_held_back();
    const bool ended = flight_.advance(slice_ms);
    if (ended)
        complete();
    disown();
    if (ended) {
        tell_hook();
        mark_future();
    }
    return ended;
}

void QuoitWork::own()
{
    while (owned_.exchange(true, std::memory_order_acquire))
        std::this_thread::yield();
}

void QuoitWork::disown()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        owned_.store(false, std::memory_order_release);
    }
    cv_.notify_all();
}

/** The flight has ended: results to their places, and everybody is told but the future. */
void QuoitWork::complete()
{
    source_ = flight_.source;
    std::exception_ptr error = flight_.settle();
    if (start_error_)
        error = start_error_;
    finish(error);
    finished_ = Clock::now();
    done_.store(true, std::memory_order_release);
}

/** By the thread that completed it. Runs the user's code, hence without any lock. */
void QuoitWork::tell_hook()
{
    if (!hook_)
        return;
    Watcher::Callback busy;
    try {
        hook_->call(std::make_shared<c10d::WorkInfo>(opType_, sequence_, started_, finished_, finished_ - started_));
    } catch (const std::exception &error) {
        TORCH_WARN("quoit: the hook that is told of ended operations raised at ", name_, ": ", error.what());
    }
    hook_->pending--;
    hook_.reset();
}

void QuoitWork::add(Flight &&flight, std::vector<at::Tensor> results)
{
    own();
    flight_.absorb(std::move(flight));
    for (at::Tensor &result : results)
        results_.push_back(std::move(result));
    disown();
}

void QuoitWork::add(Start start)
{
    own();
    held_back_.push_back(std::move(start));
    disown();
}

void QuoitWork::start_held_back()
{
    std::vector<Start> starts = std::move(held_back_);
    held_back_.clear();
    for (const Start &start : starts) {
        try {
            start(flight_);
        } catch (...) {
            if (!start_error_)
                start_error_ = std::current_exception();
        }
    }
}

/* ---------------------------------------------------------------- asking */

bool QuoitWork::isCompleted()
{
    WithoutGil nogil;
    return poke(0);
}

int QuoitWork::sourceRank() const
{
    TORCH_CHECK(done_.load(), "quoit: ", name_, ": the source is known when the operation has ended: wait first");
    TORCH_CHECK(source_ >= 0, "quoit: ", name_, ": only a receive has a source");
    return source_;
}

std::vector<at::Tensor> QuoitWork::result()
{
    return results_;
}

bool QuoitWork::wait(milliseconds timeout)
{
    constexpr int kSliceMs = 50; /* between two looks at the interpreter's signals */
    if (!done_.load(std::memory_order_acquire)) {
        WithoutGil nogil;
        const auto start = std::chrono::steady_clock::now();
        for (;;) {
            milliseconds left(kSliceMs);
            if (timeout.count() > 0) {
                const auto spent = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
                left = std::min(left, timeout - spent);
            }
            if (left.count() > 0 ? poke(static_cast<int>(left.count())) : poke(0))
                break;
            if (left.count() <= 0)
                give_up(timeout);
            check_signals();
        }
    }
    std::exception_ptr error = exception();
    if (error)
        std::rethrow_exception(error);
    return true;
}

/** A collective cannot be withdrawn alone: the other ranks count on it. */
void QuoitWork::give_up(milliseconds timeout)
{
    const std::string reason = c10::str("rank ", rank_, " waited ", timeout.count(), " ms for ", name_, " and gave up");
    if (comm_)
        comm_->abort(reason);
    throw_error(QUOIT_ERR_TIMEOUT, comm_ ? comm_->where(name_) : name_, "waited " + std::to_string(timeout.count()) +
                "ms, the limit given to wait(), and it was not finished; the process group was aborted");
}

void QuoitWork::synchronize()
{
    wait();
}

void QuoitWork::blockCurrentStream()
{
    wait();
}

float QuoitWork::getDuration() const
{
    TORCH_CHECK(has_ended(), "quoit: ", name_, ": its duration is known when it has ended: wait first");
    return std::chrono::duration<float, std::milli>(finished_ - started_).count();
}

void QuoitWork::abort()
{
    if (comm_ && !done_.load())
        comm_->abort(c10::str("rank ", rank_, " aborted ", name_));
}

/* ---------------------------------------------------------------- futures */

c10::intrusive_ptr<QuoitWork::Future> QuoitWork::getFuture()
{
    c10::intrusive_ptr<Future> future;
    bool is_new = false;
    {
        std::lock_guard<std::mutex> lock(future_mutex_);
        if (!future_) {
            future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
            is_new = true;
        }
        future = future_;
    }
    if (is_new || futures_are_done) {
        WithoutGil nogil;
        if (poke(0))
            mark_future();
        else if (futures_are_done || !Watcher::get().watch(c10::intrusive_ptr<QuoitWork>::reclaim_copy(this)))
            while (!poke(50))
                check_signals();
        if (futures_are_done)
            future->wait(); /* another thread may have ended it, and mark it now */
    }
    return future;
}

c10::intrusive_ptr<QuoitWork::Future> QuoitWork::getFutureResult()
{
    auto outcome = c10::make_intrusive<Future>(c10::IntType::get());
    getFuture()->addCallback([outcome](Future &future) {
        c10d::WorkResult result = c10d::WorkResult::SUCCESS;
        if (future.hasError())
            result = future.tryRetrieveErrorMessage().find("Timed out") != std::string::npos ? c10d::WorkResult::TIMEOUT
                                                                                             : c10d::WorkResult::COMM_ERROR;
        outcome->markCompleted(c10::IValue(static_cast<int64_t>(result)));
    });
    return outcome;
}

/** Runs the user's callbacks, hence without any lock. */
void QuoitWork::mark_future()
{
    c10::intrusive_ptr<Future> future;
    {
        std::lock_guard<std::mutex> lock(future_mutex_);
        if (!future_ || future_marked_)
            return;
        future_marked_ = true;
        future = future_;
    }
    Watcher::Callback busy;
    if (std::exception_ptr error = exception())
        future->setError(error);
    else
        future->markCompleted(c10::IValue(results_));
}

} // namespace quoit_torch
