/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watching threads; see watcher.h.
 */
#include "watcher.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#include <c10/util/thread_name.h>
#include <pthread.h>

#include "communicator.h"
#include "work.h"

namespace quoit_torch {
namespace {

constexpr int kShortSliceMs = 2; /* when several operations are watched, each is looked at that often */
constexpr int kLongSliceMs = 20;
constexpr auto kStopLimit = std::chrono::seconds(5);

Watcher *process_watcher = nullptr; /* never freed: threads may outlive everything else */
thread_local bool is_watching_thread = false;
thread_local int callback_depth = 0; /* a callback may end an operation, and so run another callback */

void renew_watcher()
{
    process_watcher = new Watcher; /* the parent's threads are not here, its locks may be held for ever */
}

} // namespace

Watcher &Watcher::get()
{
    static const bool ready = [] {
        renew_watcher();
        pthread_atfork(nullptr, nullptr, renew_watcher);
        return true;
    }();
    (void)ready;
    return *process_watcher;
}

bool Watcher::watch(c10::intrusive_ptr<QuoitWork> work)
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_)
        return false;
    if (!start_if_needed())
        return false;
    works_.push_back(std::move(work));
    return true;
}

void Watcher::watch(c10::intrusive_ptr<Communicator> comm)
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(comms_.begin(), comms_.end(), comm) == comms_.end())
        comms_.push_back(std::move(comm));
    start_if_needed();
}

bool Watcher::start_if_needed()
{
    if (!stopped_ && threads_ == in_callbacks_) {
        threads_++; /* the new one looks at it as soon as it has the lock */
        try {
            std::thread([this] { run(); }).detach();
        } catch (const std::system_error &) { /* the system gives no thread: whoever wants one waits itself */
            threads_--;
            return false;
        }
    }
    wake_.notify_one();
    return true;
}

void Watcher::stop()
{
    std::unique_lock<std::mutex> lock(mutex_);
    stopped_ = true;
    wake_.notify_all();
    ended_.wait_for(lock, kStopLimit, [this] { return threads_ == 0; });
}

void Watcher::run()
{
    c10::setThreadName("quoit_watcher");
    is_watching_thread = true;
    std::unique_lock<std::mutex> lock(mutex_);
    int slice_ms = kShortSliceMs;
    while (!stopped_ && threads_ - in_callbacks_ <= 1) { /* one that is not in a callback is enough */
        if (works_.empty() && comms_.empty()) {
            wake_.wait(lock);
            slice_ms = kShortSliceMs;
            continue;
        }
        std::vector<c10::intrusive_ptr<QuoitWork>> works = works_;
        std::vector<c10::intrusive_ptr<Communicator>> comms = comms_;
        slice_ms = works.size() > 1 ? kShortSliceMs : std::min(slice_ms + 1, kLongSliceMs);
        lock.unlock();
        look(std::move(works), std::move(comms), slice_ms);
        lock.lock();
    }
    threads_--;
    if (!works_.empty() || !comms_.empty())
        wake_.notify_one(); /* the word that woke this thread was for the one that stays */
    ended_.notify_all();
}

/** End what is finished and take it off the lists; works for the oldest when there was nothing to end. */
void Watcher::look(std::vector<c10::intrusive_ptr<QuoitWork>> works, std::vector<c10::intrusive_ptr<Communicator>> comms, int slice_ms)
{
    std::vector<c10::intrusive_ptr<QuoitWork>> done_works;
    std::vector<c10::intrusive_ptr<Communicator>> done_comms;
    for (auto &work : works) {
        if (work->poke(0))
            done_works.push_back(work);
    }
    for (auto &comm : comms) {
        if (comm->reap())
            done_comms.push_back(comm);
    }
    if (done_works.empty() && done_comms.empty()) {
        if (works.empty())
            std::this_thread::sleep_for(std::chrono::milliseconds(slice_ms));
        else
            works.front()->poke(slice_ms);
        return;
    }
    const auto drop = [](auto &list, const auto &done) {
        list.erase(std::remove_if(list.begin(), list.end(),
                                  [&](const auto &item) { return std::find(done.begin(), done.end(), item) != done.end(); }),
                   list.end());
    };
    std::lock_guard<std::mutex> lock(mutex_); /* the references in `works` die after it */
    drop(works_, done_works);
    for (auto &comm : done_comms) {
        if (!comm->has_orphans())
            comms_.erase(std::remove(comms_.begin(), comms_.end(), comm), comms_.end());
    }
}

Watcher::Callback::Callback()
{
    if (!is_watching_thread || callback_depth++ > 0)
        return;
    Watcher &watcher = Watcher::get();
    std::lock_guard<std::mutex> lock(watcher.mutex_);
    watcher.in_callbacks_++;
    if (!watcher.works_.empty() || !watcher.comms_.empty())
        watcher.start_if_needed();
}

Watcher::Callback::~Callback()
{
    if (!is_watching_thread || --callback_depth > 0)
        return;
    Watcher &watcher = Watcher::get();
    std::lock_guard<std::mutex> lock(watcher.mutex_);
    watcher.in_callbacks_--;
}

} // namespace quoit_torch
