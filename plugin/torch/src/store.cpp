/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store adapter; see store.h.
 */
#include "store.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "errors.h"
#include "interpreter.h"

namespace quoit_torch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/** Sleep, but not past `end`, in pieces after which signals are heard. */
void sleep_with_signals(milliseconds span, Clock::time_point end)
{
    const Clock::time_point until = std::min(Clock::now() + span, end);
    while (Clock::now() < until) {
        const auto left = std::chrono::duration_cast<Clock::duration>(until - Clock::now());
        std::this_thread::sleep_for(std::min<Clock::duration>(left, milliseconds(50)));
        check_signals();
    }
}

} // namespace

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int size)
    : store_(c10::make_intrusive<c10d::PrefixStore>("quoit", std::move(store))), first_pause_(1 + std::min(size / 8, 20))
{
    quoit_store_callbacks_t callbacks = {};
    callbacks.struct_size = sizeof callbacks;
    callbacks.context = this;
    callbacks.set = on_set;
    callbacks.get = on_get;
    callbacks.description = "the store of the PyTorch process group";
    check_call(quoit_store_from_callbacks(&callbacks, &handle_), "store", Stage::kSetUp);
}

StoreAdapter::~StoreAdapter()
{
    quoit_store_close(handle_);
}

void StoreAdapter::rethrow_interrupt() const
{
    if (interrupt_)
        std::rethrow_exception(interrupt_);
}

quoit_status_t StoreAdapter::on_set(void *context, const char *key, const void *value, size_t length)
{
    StoreAdapter *self = static_cast<StoreAdapter *>(context);
    try {
        const uint8_t *bytes = static_cast<const uint8_t *>(value);
        self->store_->set(key, std::vector<uint8_t>(bytes, bytes + length));
        return QUOIT_OK;
    } catch (const std::exception &error) {
        return self->failed(error);
    }
}

quoit_status_t StoreAdapter::on_get(void *context, const char *key, int timeout_ms, void **value, size_t *length)
{
    StoreAdapter *self = static_cast<StoreAdapter *>(context);
    try {
        if (self->interrupt_)
            return QUOIT_ERR_ABORTED;
        if (!self->wait(key, timeout_ms))
            return QUOIT_ERR_TIMEOUT;
        const std::vector<uint8_t> bytes = self->store_->get(key);
        void *copy = std::malloc(bytes.size() + 1);
        if (copy == nullptr)
            return QUOIT_ERR_NO_MEMORY;
        if (!bytes.empty())
            std::memcpy(copy, bytes.data(), bytes.size());
        *value = copy;
        *length = bytes.size();
        return QUOIT_OK;
    } catch (pybind11::error_already_set &) {
        self->interrupt_ = std::current_exception();
        return QUOIT_ERR_ABORTED;
    } catch (const std::exception &error) {
        return self->failed(error);
    }
}

/** Is the key there? A store written in Python need not have check(): then the key is waited for, up to `limit`. */
bool StoreAdapter::has(const std::string &key, milliseconds limit)
{
    try {
        if (can_check_)
            return store_->check({key});
    } catch (const pybind11::error_already_set &) {
        throw;
    } catch (const std::exception &error) { /* what pybind11 throws for a method that a class in Python lacks has no type of its own */
        if (std::strstr(error.what(), "pure virtual") == nullptr)
            throw;
        can_check_ = false;
    }
    try {
        store_->wait({key}, std::max(limit, milliseconds(1)));
        return true;
    } catch (pybind11::error_already_set &error) {
        pybind11::gil_scoped_acquire gil;
        const bool is_over = error.matches(PyExc_Exception) && !error.matches(PyExc_TypeError) && !error.matches(PyExc_NotImplementedError);
        if (!is_over)
            throw;
        return false;
    }
}

/*
 * c10d::Store::wait() cannot be interrupted and TCPStore logs a warning for each wait that ends without the key, hence check().
 * The pause grows with the time already waited: 8,000 ranks that wait for a slow one ask the server some 8,000 times a second. It begins the
 * longer the more ranks there are: each question takes processor time of a host that the others start on.
 */
bool StoreAdapter::wait(const std::string &key, int timeout_ms)
{
    const Clock::time_point start = Clock::now();
    const Clock::time_point end = start + milliseconds(std::max(timeout_ms, 0));
    constexpr milliseconds kSlice(200); /* of a wait that hears no signals */
    while (!has(key, std::min(kSlice, std::chrono::duration_cast<milliseconds>(end - Clock::now())))) {
        if (Clock::now() >= end)
            return false;
        const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
        sleep_with_signals(std::clamp(waited / 10, first_pause_, milliseconds(1000)), end);
    }
    return true;
}

quoit_status_t StoreAdapter::failed(const std::exception &error)
{
    const c10::Error *plain = dynamic_cast<const c10::Error *>(&error);
    error_ = plain != nullptr ? plain->what_without_backtrace() : error.what();
    return QUOIT_ERR_NETWORK;
}

} // namespace quoit_torch
