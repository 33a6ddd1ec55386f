/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One operation of a process group on its way into the library.
 *
 * Made first in each collective: gives the interpreter's lock away, makes sure of the communicator and holds it. Then input()
 * and output() find or make the memory of each tensor, issue() calls the library, finish() waits or makes the Work.
 */
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "backend.h"
#include "errors.h"
#include "interpreter.h"
#include "tensors.h"
#include "work.h"

namespace quoit_torch {

/** Milliseconds for the library: 0 means "the group's". */
int to_timeout_ms(std::chrono::milliseconds timeout);

class Launch {
public:
    enum Mode { kAsync, kBlocking };

    Launch(ProcessGroupQuoit &group, const Operation &operation, std::chrono::milliseconds timeout, bool async);

    const char *name() const { return operation_.name; }
    int rank() const { return group_.getRank(); }
    int size() const { return group_.getSize(); }

    const void *input(const at::Tensor &tensor) { return input_memory(flight, tensor); }
    void *output(const Place &place, const at::Tensor &tensor, Content content = Content::kReplaced)
    {
        return output_memory(flight, place, tensor, content);
    }

    /**
     * torch.distributed hands complex tensors over as floats (view_as_real). Their sum follows the rule of complex sums all the same: no
     * minus zeros. It is seen to when the operation has ended, since ranks need not see alike what a tensor is a view of.
     */
    void sum_goes_to(const at::Tensor &tensor, quoit_op_t op);

    /** The library's name of a reduction; sets the factor of a PREMUL_SUM. */
    quoit_op_t reduction(const c10d::ReduceOp &op);
    int root(int64_t rank, int64_t tensor = 0) const;

    /** Call the library: quoit_status_t call(quoit_comm_t *, const quoit_call_t *, quoit_request_t **). */
    template <class Call>
    void issue(Call &&call)
    {
        quoit_request_t *request = nullptr;
        check(call(use_.comm(), &call_, &request));
        if (request != nullptr)
            flight.requests.push_back(request);
    }

    /** As issue(), but when operations are coalesced it is held back until their end: sends go after receives. */
    template <class Call>
    void issue_late(Call &&call)
    {
        if (!batch_) {
            issue(call);
            return;
        }
        held_back_ = [call, parameters = call_, name = name()](Flight &target) {
            Communicator::Use use(*target.comm, Communicator::Use::kNew);
            if (!use)
                throw_error(QUOIT_ERR_CLOSED, target.comm->where(name), "the process group was destroyed");
            quoit_request_t *request = nullptr;
            const quoit_status_t status = call(use.comm(), &parameters, &request);
            if (status < 0)
                throw_error(status, target.comm->where(name), quoit_last_error());
            if (request != nullptr)
                target.requests.push_back(request);
        };
    }

    /** The Work; null when the operation is over because the caller blocks. `inputs` are shown by the profiler. */
    c10::intrusive_ptr<c10d::Work> finish(const std::vector<at::Tensor> &inputs);

    std::vector<at::Tensor> results;

private:
    void check(quoit_status_t status);
    void work_off();
    std::string where() const { return comm_->where(name()); }

    WithoutGil nogil_;
    ProcessGroupQuoit &group_;
    const Operation &operation_;
    const bool async_;
    c10::intrusive_ptr<Communicator> comm_;
    c10::intrusive_ptr<QuoitWork> batch_;
    Communicator::Use use_;
    quoit_call_t call_ = QUOIT_CALL_INIT;
    std::chrono::milliseconds limit_{0};
    QuoitWork::Start held_back_;
    uint64_t sequence_ = 0;

public:
    Flight flight; /* last: dropped while the communicator is still held */
};

} // namespace quoit_torch
