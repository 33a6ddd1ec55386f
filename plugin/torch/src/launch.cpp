/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all collectives have in common; see launch.h.
 */
#include "launch.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/item.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace quoit_torch {

int to_timeout_ms(std::chrono::milliseconds timeout)
{
    constexpr int64_t kLongest = 7200LL * 60 * 1000; /* as setting TIMEOUT allows */
    return static_cast<int>(std::clamp<int64_t>(timeout.count(), 0, kLongest));
}

Launch::Launch(ProcessGroupQuoit &group, const Operation &operation, std::chrono::milliseconds timeout, bool async)
    : group_(group), operation_(operation), async_(async), comm_(group.communicator()), batch_(group.batch()),
      use_(*comm_, Communicator::Use::kNew)
{
    if (!comm_->is_described())
        comm_->describe_as(group.description());
    if (!use_)
        throw_error(QUOIT_ERR_CLOSED, where(), "the process group was destroyed");
    if (comm_->has_orphans())
        comm_->reap();
    limit_ = timeout.count() > 0 ? timeout : group.options_->timeout;
    if (group.extra_time_.is_granted())
        timeout = limit_ += group.extra_time_.begin(&flight.extra_time);
    call_.timeout_ms = to_timeout_ms(timeout);
    call_.flags = async_ || batch_ ? 0 : QUOIT_CALL_ATTENDED;
    flight.comm = comm_;
    flight.operation = operation.name;
    sequence_ = c10d::isP2POp(operation.type) ? group.sequence_.load() : ++group.sequence_;
}

void Launch::check(quoit_status_t status)
{
    if (status < 0)
        throw_error(status, where(), quoit_last_error());
}

quoit_op_t Launch::reduction(const c10d::ReduceOp &op)
{
    switch (op.op_) {
    case c10d::ReduceOp::SUM:
        return QUOIT_SUM;
    case c10d::ReduceOp::AVG:
        return QUOIT_AVG;
    case c10d::ReduceOp::PRODUCT:
        return QUOIT_PROD;
    case c10d::ReduceOp::MIN:
        return QUOIT_MIN;
    case c10d::ReduceOp::MAX:
        return QUOIT_MAX;
    case c10d::ReduceOp::BAND:
        return QUOIT_BAND;
    case c10d::ReduceOp::BOR:
        return QUOIT_BOR;
    case c10d::ReduceOp::BXOR:
        return QUOIT_BXOR;
    case c10d::ReduceOp::PREMUL_SUM: {
        const auto *supplement = static_cast<const c10d::PreMulSumSupplement *>(op.supplement_.get());
        QUOIT_CHECK_VALUE(supplement != nullptr, name(), ": PREMUL_SUM without a factor");
        if (supplement->tensor_factor.defined()) {
            const c10::complex<double> factor = supplement->tensor_factor.item().toComplexDouble();
            call_.factor[0] = factor.real();
            call_.factor[1] = factor.imag();
        } else {
            call_.factor[0] = supplement->double_factor;
        }
        return QUOIT_PREMUL_SUM;
    }
    default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "quoit: ", name(), ": reduce operation number ", static_cast<int>(op.op_),
                                    " is not known");
    }
}

void Launch::sum_goes_to(const at::Tensor &tensor, quoit_op_t op)
{
    if (!is_sum(op) || size() == 1)
        return;
    if (tensor.is_floating_point() && tensor.is_view() && tensor._base().is_complex())
        flight.complex_sums.push_back(tensor);
    if (tensor.scalar_type() == at::kComplexHalf) {
        at::AutoDispatchBelowADInplaceOrView guard;
        flight.complex_sums.push_back(at::view_as_real(tensor.is_conj() ? tensor.conj() : tensor));
    }
}

int Launch::root(int64_t rank, int64_t tensor) const
{
    QUOIT_CHECK_VALUE(rank >= 0 && rank < size(), name(), ": root rank ", rank, " is not in a group of ", size(), " ranks");
    QUOIT_CHECK_VALUE(tensor == 0, name(), ": root tensor ", tensor, ", but there is one tensor a rank");
    return static_cast<int>(rank);
}

/** Wait for what was issued, on this thread. */
void Launch::work_off()
{
    constexpr int kSliceMs = 50; /* between two looks at the interpreter's signals */
    while (!flight.advance(kSliceMs))
        check_signals();
    if (std::exception_ptr error = flight.settle())
        std::rethrow_exception(error);
}

c10::intrusive_ptr<c10d::Work> Launch::finish(const std::vector<at::Tensor> &inputs)
{
    if (batch_) {
        batch_->add(std::move(flight), std::move(results));
        if (held_back_)
            batch_->add(std::move(held_back_));
        return async_ ? batch_ : nullptr;
    }
    if (!async_ && !at::hasCallbacks() && !group_.hasHooks()) {
        work_off();
        return nullptr;
    }
    auto work = c10::make_intrusive<QuoitWork>(rank(), operation_, sequence_, inputs, std::move(results), std::move(flight));
    work->set_limit(limit_);
    group_.follow(work);
    if (!async_)
        work->wait();
    return work;
}

} // namespace quoit_torch
