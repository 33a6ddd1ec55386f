/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's store, as the library wants to see one.
 */
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <quoit/quoit.h>

namespace quoit_torch {

/**
 * A quoit_store_t over a c10d::Store, for the time in which a communicator is created. Keys get the prefix "quoit/".
 * Waiting is done by asking again and again, so that a signal ends it; to be used without the interpreter's lock.
 */
class StoreAdapter {
public:
    /** `size`: how many ranks ask the store at the same time. */
    StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int size);
    ~StoreAdapter();
    StoreAdapter(const StoreAdapter &) = delete;
    StoreAdapter &operator=(const StoreAdapter &) = delete;

    quoit_store_t *get() const { return handle_; }

    /** Text of the newest exception that the store threw; "" if there was none. */
    const std::string &error() const { return error_; }

    /** Throws what a signal handler raised while the store was waited for, if anything. */
    void rethrow_interrupt() const;

private:
    static quoit_status_t on_set(void *context, const char *key, const void *value, size_t length);
    static quoit_status_t on_get(void *context, const char *key, int timeout_ms, void **value, size_t *length);

    bool wait(const std::string &key, int timeout_ms);
    bool has(const std::string &key, std::chrono::milliseconds limit);
    quoit_status_t failed(const std::exception &error);

    c10::intrusive_ptr<c10d::Store> store_;
    const std::chrono::milliseconds first_pause_;
    quoit_store_t *handle_ = nullptr;
    bool can_check_ = true; /* else it is a store written in Python without check() */
    std::string error_;
    std::exception_ptr interrupt_;
};

} // namespace quoit_torch
