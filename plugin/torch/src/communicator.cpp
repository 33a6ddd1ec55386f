/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flights and the end of a communicator; see communicator.h.
 */
#include "communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/copy.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include "errors.h"
#include "watcher.h"
#include "work.h"

namespace quoit_torch {
namespace {

constexpr int kAbortLimitMs = 5000; /* an aborted operation ends at once; this is for a machine that is overloaded */

/** Setting LINGER in milliseconds. */
int linger_ms()
{
    int64_t microseconds = 0;
    (void)quoit_setting_get_number("LINGER", &microseconds); /* there is a communicator, so the settings are valid */
    return static_cast<int>(microseconds / 1000);
}

} // namespace

/* ---------------------------------------------------------------- flights */

Flight::Flight(Flight &&other) noexcept
    : comm(std::move(other.comm)), operation(other.operation), requests(std::move(other.requests)), keep(std::move(other.keep)),
      copies(std::move(other.copies)), complex_sums(std::move(other.complex_sums)), source(other.source),
      extra_time(std::move(other.extra_time)), ended_(other.ended_), status_(other.status_), error_(std::move(other.error_))
{
    other.requests.clear();
}

Flight::~Flight()
{
    if (!requests.empty() && comm) {
        c10::intrusive_ptr<Communicator> owner = comm;
        owner->adopt(std::move(*this));
    }
}

bool Flight::advance(int slice_ms)
{
    if (requests.empty())
        return true;
    Communicator::Use use(*comm, Communicator::Use::kRunning);
    if (!use) { /* close() gave up on it, the communicator with its requests is left behind */
        status_ = QUOIT_ERR_CLOSED;
        error_ = "the process group was destroyed";
        requests.clear();
        return true;
    }
    for (; ended_ < requests.size(); ended_++) {
        quoit_request_t *request = requests[ended_];
        const quoit_status_t status = slice_ms > 0 ? quoit_request_wait(request, slice_ms) : quoit_request_test(request);
        if (status == QUOIT_IN_PROGRESS)
            return false;
        if (status < 0 && status_ == QUOIT_OK) {
            status_ = status;
            error_ = quoit_request_error(request);
        }
        size_t count = 0;
        if (source == kWanted && quoit_request_source(request, &source, &count) != QUOIT_OK)
            source = -1;
    }
    for (quoit_request_t *request : requests)
        quoit_request_free(request);
    requests.clear();
    ended_ = 0;
    return true;
}

std::exception_ptr Flight::settle()
{
    std::exception_ptr error;
    if (status_ != QUOIT_OK) {
        error = make_error(status_, comm->where(operation), error_);
    } else if (!copies.empty() || !complex_sums.empty()) {
        try {
            at::AutoDispatchBelowADInplaceOrView guard;
            for (auto &[to, from] : copies)
                to.copy_(from);
            for (at::Tensor &sum : complex_sums)
                sum.add_(0.0);
        } catch (...) {
            error = std::current_exception();
        }
    }
    copies.clear();
    complex_sums.clear();
    keep.clear();
    extra_time.reset();
    return error;
}

void Flight::absorb(Flight &&other)
{
    for (quoit_request_t *request : other.requests)
        requests.push_back(request);
    other.requests.clear();
    for (at::Tensor &tensor : other.keep)
        keep.push_back(std::move(tensor));
    for (auto &copy : other.copies)
        copies.push_back(std::move(copy));
    for (at::Tensor &sum : other.complex_sums)
        complex_sums.push_back(std::move(sum));
    other.keep.clear();
    other.copies.clear();
    other.complex_sums.clear();
    if (other.extra_time)
        extra_time = std::move(other.extra_time);
}

/* ---------------------------------------------------------------- uses */

Communicator::Use::Use(Communicator &owner, Kind kind) : owner_(&owner)
{
    owner.users_.fetch_add(1);
    const State state = owner.state_.load();
    if (state == kGone || (kind == kNew && state != kOpen)) {
        owner.users_.fetch_sub(1);
        owner_ = nullptr;
    }
}

Communicator::Use::~Use()
{
    if (owner_ != nullptr)
        owner_->users_.fetch_sub(1);
}

void Communicator::Use::demand(const char *operation) const
{
    if (owner_ == nullptr)
        throw_error(QUOIT_ERR_CLOSED, operation, "the process group was destroyed");
}

/* ---------------------------------------------------------------- communicators */

Communicator::Communicator(quoit_comm_t *raw) : raw_(raw), owner_pid_(getpid()) {}

Communicator::~Communicator()
{
    close();
    delete description_.load();
}

void Communicator::describe_as(const std::string &description)
{
    const std::string *none = nullptr;
    const std::string *copy = new std::string(description);
    if (!description_.compare_exchange_strong(none, copy))
        delete copy;
}

std::string Communicator::where(const char *operation) const
{
    const std::string *description = description_.load();
    if (description == nullptr || description->empty())
        return operation;
    return std::string(operation) + " in group \"" + *description + "\"";
}

bool Communicator::is_inherited() const
{
    return getpid() != owner_pid_;
}

void Communicator::abort(const std::string &reason)
{
    Use use(*this, Use::kRunning);
    if (use)
        quoit_comm_abort(use.comm(), reason.c_str());
}

void Communicator::track(const c10::intrusive_ptr<QuoitWork> &work)
{
    if (is_inherited())
        return;
    std::lock_guard<std::mutex> lock(mutex_);
    works_.emplace(work.get(), c10::weak_intrusive_ptr<QuoitWork>(work));
}

void Communicator::forget(QuoitWork *work)
{
    if (is_inherited())
        return;
    decltype(works_)::node_type node; /* freed after the lock */
    std::lock_guard<std::mutex> lock(mutex_);
    node = works_.extract(work);
}

void Communicator::adopt(Flight &&flight)
{
    if (is_inherited() || state_.load() == kGone) {
        new Flight(std::move(flight)); /* nobody can say when its memory is free: it stays */
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        orphans_.emplace_back(std::move(flight));
        orphan_count_++;
    }
    if (is_open())
        Watcher::get().watch(c10::intrusive_ptr<Communicator>::reclaim_copy(this));
}

std::vector<c10::intrusive_ptr<QuoitWork>> Communicator::works()
{
    std::vector<c10::intrusive_ptr<QuoitWork>> found;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto &[key, weak] : works_) {
        if (c10::intrusive_ptr<QuoitWork> work = weak.lock())
            found.push_back(std::move(work));
    }
    return found;
}

bool Communicator::reap()
{
    std::list<Flight> mine;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        mine.swap(orphans_);
    }
    for (auto it = mine.begin(); it != mine.end();) {
        if (!it->advance(0)) {
            ++it;
            continue;
        }
        it->settle(); /* nobody is left to hear of an error; the communicator keeps its text */
        it = mine.erase(it);
        orphan_count_--;
    }
    if (mine.empty())
        return true;
    std::lock_guard<std::mutex> lock(mutex_);
    orphans_.splice(orphans_.end(), mine);
    return false;
}

/** Work until nothing is left that uses the communicator, or the limit is over (false). */
bool Communicator::drain(int limit_ms)
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
    for (;;) {
        const std::vector<c10::intrusive_ptr<QuoitWork>> running = works();
        bool done = reap();
        for (const c10::intrusive_ptr<QuoitWork> &work : running)
            done = work->poke(1) && done;
        if (done && users_.load() == 0)
            return true;
        if (std::chrono::steady_clock::now() >= end)
            return false;
        if (running.empty())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void Communicator::close()
{
    State open = kOpen;
    if (is_inherited() || !state_.compare_exchange_strong(open, kClosing))
        return;
    bool clean = drain(linger_ms());
    if (!clean) {
        quoit_comm_abort(raw_, "the process group was destroyed while operations were pending");
        clean = drain(kAbortLimitMs);
    }
    state_.store(kGone);
    if (clean && users_.load() == 0)
        quoit_comm_destroy(raw_);
    else
        TORCH_WARN("quoit: a communicator is left behind: its operations did not end within ", kAbortLimitMs,
                   " ms after they were aborted");
}

} // namespace quoit_torch
