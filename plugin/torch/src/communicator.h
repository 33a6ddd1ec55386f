/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of the library with what the framework adds to its life: several threads use it, Python drops handles of
 * operations that still run, and a group may be destroyed while all that goes on.
 *
 * Rules
 *  - quoit_comm_t is touched only under a Use. close() waits until there is none.
 *  - A Flight is one operation's requests and the memory they touch. It is never destroyed while the library may still write:
 *    an unfinished one is adopted by its communicator, which ends it later.
 *  - No lock is held while a tensor is dropped: that may take the interpreter's lock.
 */
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <quoit/quoit.h>

#include "extra_time.h"

namespace quoit_torch {

class Communicator;
class QuoitWork;

/** The requests of one operation, and what must outlive them. Moved, never copied; one thread at a time. */
struct Flight {
    Flight() = default;
    Flight(Flight &&other) noexcept;
    Flight &operator=(Flight &&) = delete;
    ~Flight(); /* hands itself to the communicator when it is not finished */

    /** Works at most slice_ms (0: only looks). True when all requests have ended; they are freed then. */
    bool advance(int slice_ms);

    /** After advance() was true: staged results go to their places, tensors are dropped. Null, or the error it ended with. */
    std::exception_ptr settle();

    /** Take over all that is in `other`. */
    void absorb(Flight &&other);

    c10::intrusive_ptr<Communicator> comm;
    const char *operation = "";
    c10::SmallVector<quoit_request_t *, 2> requests;
    std::vector<at::Tensor> keep;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies; /* (user's tensor, staged result) */
    std::vector<at::Tensor> complex_sums; /* parts of complex numbers that were summed as floats: their zeros get a plus sign */
    static constexpr int kWanted = -2;
    int source = -1; /* of a receive: kWanted until it has ended, then the rank it came from */
    ExtraTime::Lease extra_time;

private:
    size_t ended_ = 0; /* requests before this one have ended */
    quoit_status_t status_ = QUOIT_OK;
    std::string error_;
};

class Communicator : public c10::intrusive_ptr_target {
public:
    /** Takes `raw`, which close() destroys. */
    explicit Communicator(quoit_comm_t *raw);
    ~Communicator() override;

    /** Keeps close() from destroying the communicator. */
    class Use {
    public:
        enum Kind { kNew /* not once close() was called */, kRunning /* until it is destroyed */ };
        Use(Communicator &owner, Kind kind);
        ~Use();
        Use(const Use &) = delete;
        Use &operator=(const Use &) = delete;
        explicit operator bool() const { return owner_ != nullptr; }
        /** Throws when it is none, as an error of `operation`. */
        void demand(const char *operation) const;
        quoit_comm_t *comm() const { return owner_->raw_; }

    private:
        Communicator *owner_;
    };

    /** What the user calls the group, for errors. Once; later calls change nothing. */
    void describe_as(const std::string &description);
    bool is_described() const { return description_.load(std::memory_order_relaxed) != nullptr; }

    /** "all_reduce", or "all_reduce in group \"tensor parallel\"" when the group has a description. */
    std::string where(const char *operation) const;

    bool is_open() const { return state_.load(std::memory_order_acquire) == kOpen; }

    /** End everything that runs, on all ranks. */
    void abort(const std::string &reason);

    /**
     * No new operations; those that run get the time of setting LINGER, then they are aborted, then the communicator is
     * destroyed. Once; not under the interpreter's lock. In a forked child it does nothing.
     */
    void close();

    void track(const c10::intrusive_ptr<QuoitWork> &work);
    void forget(QuoitWork *work);
    void adopt(Flight &&flight);

    /** The operations that have a handle and may be running. */
    std::vector<c10::intrusive_ptr<QuoitWork>> works();

    /** End adopted flights as far as possible without waiting. False when some remain. */
    bool reap();
    bool has_orphans() const { return orphan_count_.load(std::memory_order_relaxed) != 0; }

    /** Is this a child of the process that made it? */
    bool is_inherited() const;

private:
    enum State { kOpen, kClosing, kGone };

    bool drain(int limit_ms);

    quoit_comm_t *raw_;
    const int owner_pid_;
    std::atomic<State> state_{kOpen};
    std::atomic<int> users_{0};
    std::atomic<size_t> orphan_count_{0};
    std::atomic<const std::string *> description_{nullptr}; /* owned */
    std::mutex mutex_; /* guards the two below */
    std::unordered_map<QuoitWork *, c10::weak_intrusive_ptr<QuoitWork>> works_;
    std::list<Flight> orphans_;
};

} // namespace quoit_torch
