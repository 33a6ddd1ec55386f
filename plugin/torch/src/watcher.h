/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the process that end operations nobody waits for: those with a future, and those whose Work was dropped.
 *
 * There is none until one is needed, then one; another comes when all are busy in callbacks of users' futures, which may
 * themselves wait for futures. They sleep when there is nothing to watch, and never hold the interpreter's lock while they work.
 */
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace quoit_torch {

class Communicator;
class QuoitWork;

class Watcher {
public:
    /** The process's own; a forked child gets a new one. */
    static Watcher &get();

    /** Sees to it that `work` ends. False after stop(), and when the system gives no thread: the caller has to wait for it. */
    bool watch(c10::intrusive_ptr<QuoitWork> work);
    /** Sees to it that adopted flights of `comm` end. */
    void watch(c10::intrusive_ptr<Communicator> comm);

    /** For the end of the interpreter: waits (bounded) until no thread is left; later operations are ended by their waiters. */
    void stop();

    /** To be held by a watching thread while it runs a user's callback. */
    class Callback {
    public:
        Callback();
        ~Callback();
    };

private:
    bool start_if_needed(); /* under mutex_; false: the system gives no thread */
    void run();
    void look(std::vector<c10::intrusive_ptr<QuoitWork>> works, std::vector<c10::intrusive_ptr<Communicator>> comms, int slice_ms);

    std::mutex mutex_;
    std::condition_variable wake_, ended_;
    std::vector<c10::intrusive_ptr<QuoitWork>> works_;
    std::vector<c10::intrusive_ptr<Communicator>> comms_;
    int threads_ = 0;
    int in_callbacks_ = 0;
    bool stopped_ = false;
};

} // namespace quoit_torch
