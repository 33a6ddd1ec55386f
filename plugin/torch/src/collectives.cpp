/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of the process group: what each demands of its tensors, and the call of the library that does it.
 */
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include "launch.h"

namespace quoit_torch {
namespace {

using c10d::OpType;

constexpr Operation kBroadcast = {OpType::BROADCAST, "broadcast", "quoit:broadcast"};
constexpr Operation kAllReduce = {OpType::ALLREDUCE, "all_reduce", "quoit:all_reduce"};
constexpr Operation kAllReduceSparse = {OpType::_ALLREDUCE_SPARSE, "all_reduce (sparse)", "quoit:sparse_all_reduce"};
constexpr Operation kAllReduceCoalesced = {OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", "quoit:all_reduce"};
constexpr Operation kReduce = {OpType::REDUCE, "reduce", "quoit:reduce"};
constexpr Operation kAllGather = {OpType::ALLGATHER, "all_gather", "quoit:all_gather"};
constexpr Operation kAllGatherBase = {OpType::_ALLGATHER_BASE, "all_gather_into_tensor", "quoit:_all_gather_base"};
constexpr Operation kAllGatherCoalesced = {OpType::ALLGATHER_COALESCED, "all_gather_coalesced", "quoit:all_gather"};
#if QUOIT_TORCH_AT_LEAST(2, 14)
constexpr OpType kAllGatherIntoCoalescedType = OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#else
constexpr OpType kAllGatherIntoCoalescedType = OpType::COALESCED;
#endif
constexpr Operation kAllGatherIntoCoalesced = {kAllGatherIntoCoalescedType, "all_gather_into_tensor_coalesced",
                                               "quoit:_all_gather_base"};
constexpr Operation kGather = {OpType::GATHER, "gather", "quoit:gather"};
constexpr Operation kGatherSingle = {OpType::GATHER, "gather_single", "quoit:gather"};
constexpr Operation kScatter = {OpType::SCATTER, "scatter", "quoit:scatter"};
constexpr Operation kReduceScatter = {OpType::REDUCE_SCATTER, "reduce_scatter", "quoit:reduce_scatter"};
constexpr Operation kReduceScatterBase = {OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", "quoit:_reduce_scatter_base"};
constexpr Operation kReduceScatterCoalesced = {OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter_tensor_coalesced",
                                               "quoit:_reduce_scatter_base"};
constexpr Operation kAllToAllBase = {OpType::ALLTOALL_BASE, "all_to_all_single", "quoit:all_to_all"};
constexpr Operation kAllToAll = {OpType::ALLTOALL, "all_to_all", "quoit:all_to_all"};
constexpr Operation kBarrier = {OpType::BARRIER, "barrier", "quoit:barrier"};

using Parts = c10::SmallVector<quoit_part_t, 16>;

/** The list's only tensor: Backend's calls take lists for the sake of several devices a rank, which are no more. */
at::Tensor &only(const char *operation, std::vector<at::Tensor> &tensors)
{
    check_list(operation, "tensors", tensors.size(), 1);
    return tensors[0];
}

/**
 * One tensor a rank, as parts that are read. Element counts may differ. What overlaps `output` is copied, unless it is the rank's own part
 * and lies exactly there.
 */
Parts input_parts(Launch &launch, const std::vector<at::Tensor> &tensors, at::ScalarType dtype, size_t scale, const at::Tensor &output = {})
{
    check_list(launch.name(), "input tensors", tensors.size(), launch.size());
    Parts parts;
    for (size_t i = 0; i < tensors.size(); i++) {
        const Place place = {launch.name(), "input", static_cast<int64_t>(i)};
        const at::Tensor &tensor = tensors[i];
        check_tensor(place, tensor);
        check_dtype(place, tensor, dtype);
        const bool in_place = output.defined() && i == static_cast<size_t>(launch.rank()) &&
                              tensor.const_data_ptr() == output.const_data_ptr();
        const void *data = launch.input(output.defined() && !in_place ? apart_from(tensor, output) : tensor);
        parts.push_back({const_cast<void *>(data), tensor.numel() * scale});
    }
    return parts;
}

/** What is told, once, of outputs that share memory: a list made by [tensor] * n. */
void warn_of_shared_outputs(const Launch &launch)
{
    TORCH_WARN_ONCE("quoit: ", launch.name(), ": output tensors share memory, so that what the later ones receive overwrites what the earlier "
                    "ones have received. [tensor] * n is a list of one tensor; [torch.empty_like(tensor) for _ in range(n)] has n of them");
}

/**
 * One tensor a rank, as parts that are written. Element counts may differ. Where tensors share memory the last one wins, on all ranks
 * alike, whichever part comes first.
 */
Parts output_parts(Launch &launch, const std::vector<at::Tensor> &tensors, at::ScalarType dtype, size_t scale)
{
    check_list(launch.name(), "output tensors", tensors.size(), launch.size());
    const auto place = [&](size_t i) { return Place{launch.name(), "output", static_cast<int64_t>(i)}; };
    for (size_t i = 0; i < tensors.size(); i++) {
        check_tensor(place(i), tensors[i]);
        check_dtype(place(i), tensors[i], dtype);
    }
    const bool shared = share_memory(tensors);
    if (shared)
        warn_of_shared_outputs(launch);
    Parts parts;
    for (size_t i = 0; i < tensors.size(); i++) {
        void *data = launch.output(place(i), tensors[i], shared ? Content::kStaged : Content::kReplaced);
        parts.push_back({data, tensors[i].numel() * scale});
    }
    return parts;
}

/** The rank's input to a list of outputs: a copy when it overlaps one of them, unless that is its own part and goes exactly there. */
at::Tensor apart_from_parts(const Launch &launch, const at::Tensor &input, const std::vector<at::Tensor> &outputs, const Parts &parts)
{
    at::Tensor source = input;
    for (size_t r = 0; r < outputs.size(); r++) {
        if (r != static_cast<size_t>(launch.rank()) || parts[r].data != input.const_data_ptr())
            source = apart_from(source, outputs[r]);
    }
    return source;
}

void issue_allreduce(Launch &launch, const Place &place, const at::Tensor &tensor, quoit_op_t op)
{
    check_tensor(place, tensor);
    const Element element = element_to_reduce(place, tensor, op);
    void *data = launch.output(place, tensor, Content::kUpdated);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_allreduce(comm, data, data, tensor.numel() * element.scale, element.dtype, op, call, request);
    });
    launch.sum_goes_to(tensor, op);
    launch.results.push_back(tensor);
}

void issue_allgather(Launch &launch, int64_t index, const at::Tensor &output, const at::Tensor &input)
{
    const Place to = {launch.name(), "output", index}, from = {launch.name(), "input", index};
    check_tensor(from, input);
    check_tensor(to, output);
    check_dtype(to, output, input.scalar_type());
    check_count(to, output, input.numel() * launch.size());
    const Element element = element_to_move(from, input);
    void *recv = launch.output(to, output);
    /* The only overlap that is allowed is the input being its own part of the output. */
    const char *own = static_cast<const char *>(recv) + launch.rank() * input.nbytes();
    const bool in_place = input.is_contiguous() && input.const_data_ptr() == own;
    const void *send = launch.input(in_place ? input : apart_from(input, output));
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_allgather(comm, send, recv, input.numel() * element.scale, element.dtype, call, request);
    });
    launch.results.push_back(output);
}

void issue_reduce_scatter(Launch &launch, int64_t index, const at::Tensor &output, const at::Tensor &input, quoit_op_t op)
{
    const Place to = {launch.name(), "output", index}, from = {launch.name(), "input", index};
    check_tensor(from, input);
    check_tensor(to, output);
    check_dtype(to, output, input.scalar_type());
    check_count(from, input, output.numel() * launch.size());
    const Element element = element_to_reduce(from, input, op);
    const void *send = launch.input(apart_from(input, output));
    void *recv = launch.output(to, output);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_reduce_scatter(comm, send, recv, output.numel() * element.scale, element.dtype, op, call, request);
    });
    launch.sum_goes_to(output, op);
    launch.results.push_back(output);
}

} // namespace

/* ---------------------------------------------------------------- one to all, all to one */

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts)
{
    Launch launch(*this, kBroadcast, opts.timeout, opts.asyncOp);
    const at::Tensor &tensor = only(launch.name(), tensors);
    const Place place = {launch.name(), "tensor"};
    check_tensor(place, tensor);
    const int root = launch.root(opts.rootRank, opts.rootTensor);
    const Element element = element_to_move(place, tensor);
    void *data = root == rank_ ? const_cast<void *>(launch.input(tensor)) : launch.output(place, tensor);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_broadcast(comm, data, tensor.numel() * element.scale, element.dtype, root, call, request);
    });
    launch.results = tensors;
    return launch.finish(tensors);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::reduce(Tensors &tensors, const c10d::ReduceOptions &opts)
{
    Launch launch(*this, kReduce, opts.timeout, opts.asyncOp);
    const at::Tensor &tensor = only(launch.name(), tensors);
    const Place place = {launch.name(), "tensor"};
    check_tensor(place, tensor);
    const int root = launch.root(opts.rootRank, opts.rootTensor);
    const quoit_op_t op = launch.reduction(opts.reduceOp);
    const Element element = element_to_reduce(place, tensor, op);
    void *recv = root == rank_ ? launch.output(place, tensor, Content::kUpdated) : nullptr;
    const void *send = root == rank_ ? recv : launch.input(tensor);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_reduce(comm, send, recv, tensor.numel() * element.scale, element.dtype, op, root, call, request);
    });
    if (root == rank_)
        launch.sum_goes_to(tensor, op);
    launch.results = tensors;
    return launch.finish(tensors);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts)
{
    Launch launch(*this, kGather, opts.timeout, opts.asyncOp);
    const at::Tensor &input = only(launch.name(), inputs);
    check_tensor({launch.name(), "input"}, input);
    const int root = launch.root(opts.rootRank);
    const Element element = element_to_move({launch.name(), "input"}, input);
    Parts parts;
    if (root == rank_) {
        check_list(launch.name(), "lists of outputs", outputs.size(), 1);
        parts = output_parts(launch, outputs[0], input.scalar_type(), element.scale);
        check_count({launch.name(), "output", rank_}, outputs[0][rank_], input.numel());
        launch.results = outputs[0];
    } else {
        QUOIT_CHECK_VALUE(outputs.empty() || outputs[0].empty(), launch.name(), ": rank ", rank_, " is not the root (", root,
                          "), so it must not give output tensors");
    }
    const void *send = launch.input(root == rank_ ? apart_from_parts(launch, input, outputs[0], parts) : input);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_gatherv(comm, send, input.numel() * element.scale, root == rank_ ? parts.data() : nullptr, element.dtype, root,
                             call, request);
    });
    return launch.finish(inputs);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::gather_single(at::Tensor &output, at::Tensor &input, const c10d::GatherOptions &opts)
{
    Launch launch(*this, kGatherSingle, opts.timeout, opts.asyncOp);
    const Place to = {launch.name(), "output"}, from = {launch.name(), "input"};
    check_tensor(from, input);
    const int root = launch.root(opts.rootRank);
    const Element element = element_to_move(from, input);
    void *recv = nullptr;
    if (root == rank_) {
        check_tensor(to, output);
        check_dtype(to, output, input.scalar_type());
        check_count(to, output, input.numel() * size_);
        recv = launch.output(to, output);
        launch.results.push_back(output);
    }
    const void *send = launch.input(root == rank_ ? apart_from(input, output) : input);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_gather(comm, send, recv, input.numel() * element.scale, element.dtype, root, call, request);
    });
    return launch.finish({input});
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts)
{
    Launch launch(*this, kScatter, opts.timeout, opts.asyncOp);
    const at::Tensor &output = only(launch.name(), outputs);
    const Place place = {launch.name(), "output"};
    check_tensor(place, output);
    const int root = launch.root(opts.rootRank);
    const Element element = element_to_move(place, output);
    Parts parts;
    if (root == rank_) {
        check_list(launch.name(), "lists of inputs", inputs.size(), 1);
        parts = input_parts(launch, inputs[0], output.scalar_type(), element.scale, output);
        check_count({launch.name(), "input", rank_}, inputs[0][rank_], output.numel());
    } else {
        QUOIT_CHECK_VALUE(inputs.empty() || inputs[0].empty(), launch.name(), ": rank ", rank_, " is not the root (", root,
                          "), so it must not give input tensors");
    }
    void *recv = launch.output(place, output);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_scatterv(comm, root == rank_ ? parts.data() : nullptr, recv, output.numel() * element.scale, element.dtype,
                              root, call, request);
    });
    launch.results = outputs;
    return launch.finish(root == rank_ ? inputs[0] : outputs);
}

/* ---------------------------------------------------------------- reductions */

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    if (!tensors.empty() && tensors[0].defined() && tensors[0].is_sparse())
        return allreduce_sparse(tensors, opts);
    Launch launch(*this, kAllReduce, opts.timeout, opts.asyncOp);
    issue_allreduce(launch, {launch.name(), "tensor"}, only(launch.name(), tensors), launch.reduction(opts.reduceOp));
    return launch.finish(tensors);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allreduceResidual(at::Tensor &tensor, at::Tensor &residual)
{
    Launch launch(*this, kAllReduce, c10d::kUnsetTimeout, true);
    const Place place = {launch.name(), "tensor"}, rest = {launch.name(), "residual"};
    check_tensor(place, tensor);
    check_tensor(rest, residual);
    check_dtype(place, tensor, at::kFloat);
    check_dtype(rest, residual, at::kFloat);
    check_count(rest, residual, tensor.numel());
    QUOIT_CHECK_VALUE(residual.is_contiguous(), launch.name(), ": residual is not contiguous");
    void *data = launch.output(place, tensor, Content::kUpdated);
    launch.flight.keep.push_back(residual);
    launch.issue([&](auto comm, auto call, auto request) {
        quoit_call_t own = *call;
        own.residual = residual.data_ptr<float>();
        return quoit_allreduce(comm, data, data, tensor.numel(), QUOIT_F32, QUOIT_SUM, &own, request);
    });
    launch.results.push_back(tensor);
    return launch.finish({tensor});
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts)
{
    Launch launch(*this, kAllReduceCoalesced, opts.timeout, opts.asyncOp);
    QUOIT_CHECK_VALUE(!tensors.empty(), launch.name(), ": the list of tensors is empty");
    const quoit_op_t op = launch.reduction(opts.reduceOp);
    for (size_t i = 0; i < tensors.size(); i++)
        issue_allreduce(launch, {launch.name(), "tensor", static_cast<int64_t>(i)}, tensors[i], op);
    return launch.finish(tensors);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::reduce_scatter(Tensors &outputs, TensorLists &inputs,
                                                             const c10d::ReduceScatterOptions &opts)
{
    Launch launch(*this, kReduceScatter, opts.timeout, opts.asyncOp);
    const at::Tensor &output = only(launch.name(), outputs);
    check_list(launch.name(), "lists of inputs", inputs.size(), 1);
    const Place place = {launch.name(), "output"};
    check_tensor(place, output);
    const quoit_op_t op = launch.reduction(opts.reduceOp);
    const Element element = element_to_reduce(place, output, op);
    const Parts parts = input_parts(launch, inputs[0], output.scalar_type(), element.scale, output);
    check_count({launch.name(), "input", rank_}, inputs[0][rank_], output.numel());
    void *recv = launch.output(place, output);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_reduce_scatterv(comm, parts.data(), recv, element.dtype, op, call, request);
    });
    launch.sum_goes_to(output, op);
    launch.results = outputs;
    return launch.finish(inputs[0]);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                                   const c10d::ReduceScatterOptions &opts)
{
    Launch launch(*this, kReduceScatterBase, opts.timeout, opts.asyncOp);
    issue_reduce_scatter(launch, -1, output, input, launch.reduction(opts.reduceOp));
    return launch.finish({input});
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                                              const c10d::ReduceScatterOptions &opts)
{
    Launch launch(*this, kReduceScatterCoalesced, opts.timeout, opts.asyncOp);
    check_list(launch.name(), "input tensors", inputs.size(), outputs.size());
    const quoit_op_t op = launch.reduction(opts.reduceOp);
    for (size_t i = 0; i < outputs.size(); i++)
        issue_reduce_scatter(launch, static_cast<int64_t>(i), outputs[i], inputs[i], op);
    return launch.finish(inputs);
}

/* ---------------------------------------------------------------- gathering to all */

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts)
{
    Launch launch(*this, kAllGather, opts.timeout, opts.asyncOp);
    const at::Tensor &input = only(launch.name(), inputs);
    check_list(launch.name(), "lists of outputs", outputs.size(), 1);
    check_tensor({launch.name(), "input"}, input);
    const Element element = element_to_move({launch.name(), "input"}, input);
    const Parts parts = output_parts(launch, outputs[0], input.scalar_type(), element.scale);
    check_count({launch.name(), "output", rank_}, outputs[0][rank_], input.numel());
    const void *send = launch.input(apart_from_parts(launch, input, outputs[0], parts));
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_allgatherv(comm, send, parts.data(), element.dtype, call, request);
    });
    launch.results = outputs[0];
    return launch.finish(inputs);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::_allgather_base(at::Tensor &output, at::Tensor &input,
                                                              const c10d::AllgatherOptions &opts)
{
    Launch launch(*this, kAllGatherBase, opts.timeout, opts.asyncOp);
    issue_allgather(launch, -1, output, input);
    return launch.finish({input});
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
                                                                  const c10d::AllgatherOptions &opts)
{
    Launch launch(*this, kAllGatherCoalesced, opts.timeout, opts.asyncOp);
    check_list(launch.name(), "lists of outputs", outputs.size(), size_);
    for (int r = 0; r < size_; r++)
        check_list(launch.name(), "outputs for a rank", outputs[r].size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); i++) {
        const Place place = {launch.name(), "input", static_cast<int64_t>(i)};
        check_tensor(place, inputs[i]);
        const Element element = element_to_move(place, inputs[i]);
        std::vector<at::Tensor> column;
        for (int r = 0; r < size_; r++)
            column.push_back(outputs[r][i]);
        const Parts parts = output_parts(launch, column, inputs[i].scalar_type(), element.scale);
        check_count({launch.name(), "output", rank_}, column[rank_], inputs[i].numel());
        const void *send = launch.input(apart_from_parts(launch, inputs[i], column, parts));
        launch.issue([&](auto comm, auto call, auto request) {
            return quoit_allgatherv(comm, send, parts.data(), element.dtype, call, request);
        });
        launch.results.insert(launch.results.end(), column.begin(), column.end());
    }
    return launch.finish(inputs);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                                              const c10d::AllgatherOptions &opts)
{
    Launch launch(*this, kAllGatherIntoCoalesced, opts.timeout, opts.asyncOp);
    check_list(launch.name(), "input tensors", inputs.size(), outputs.size());
    for (size_t i = 0; i < outputs.size(); i++)
        issue_allgather(launch, static_cast<int64_t>(i), outputs[i], inputs[i]);
    return launch.finish(inputs);
}

/* ---------------------------------------------------------------- all to all */

namespace {

/** Parts of `tensor` along its first dimension; equal ones when `splits` is empty. */
Parts split_parts(Launch &launch, const Place &place, const at::Tensor &tensor, const std::vector<int64_t> &splits, void *data,
                  const Element &element)
{
    const int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
    const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
    const int64_t size = launch.size();
    if (splits.empty()) {
        QUOIT_CHECK_VALUE(rows % size == 0, place.text(), " has ", rows, " rows, which ", size,
                          " ranks cannot share equally: give split sizes");
    } else {
        check_list(launch.name(), "split sizes", splits.size(), size);
        int64_t sum = 0;
        for (int64_t split : splits) {
            QUOIT_CHECK_VALUE(split >= 0, place.text(), " has a negative split size, ", split);
            sum += split;
        }
        QUOIT_CHECK_VALUE(sum == rows, place.text(), " has ", rows, " rows, but its split sizes add up to ", sum);
    }
    Parts parts;
    char *next = static_cast<char *>(data);
    for (int64_t r = 0; r < size; r++) {
        const size_t count = (splits.empty() ? rows / size : splits[r]) * row;
        parts.push_back({next, count * element.scale});
        next += count * tensor.element_size();
    }
    return parts;
}

} // namespace

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::alltoall_base(at::Tensor &output, at::Tensor &input,
                                                            std::vector<int64_t> &output_splits, std::vector<int64_t> &input_splits,
                                                            const c10d::AllToAllOptions &opts)
{
    Launch launch(*this, kAllToAllBase, opts.timeout, opts.asyncOp);
    const Place to = {launch.name(), "output"}, from = {launch.name(), "input"};
    check_tensor(from, input);
    check_tensor(to, output);
    check_dtype(to, output, input.scalar_type());
    const Element element = element_to_move(from, input);
    void *send = const_cast<void *>(launch.input(apart_from(input, output)));
    void *recv = launch.output(to, output);
    const Parts sends = split_parts(launch, from, input, input_splits, send, element);
    const Parts recvs = split_parts(launch, to, output, output_splits, recv, element);
    QUOIT_CHECK_VALUE(sends[rank_].count == recvs[rank_].count, launch.name(), ": rank ", rank_, " sends itself ",
                      sends[rank_].count / element.scale, " elements, but expects ", recvs[rank_].count / element.scale);
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_alltoallv(comm, sends.data(), recvs.data(), element.dtype, call, request);
    });
    launch.results.push_back(output);
    return launch.finish({input});
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts)
{
    Launch launch(*this, kAllToAll, opts.timeout, opts.asyncOp);
    check_list(launch.name(), "input tensors", inputs.size(), size_);
    check_list(launch.name(), "output tensors", outputs.size(), size_);
    check_tensor({launch.name(), "input", 0}, inputs[0]);
    const at::ScalarType dtype = inputs[0].scalar_type();
    const Element element = element_to_move({launch.name(), "input", 0}, inputs[0]);
    std::vector<at::Tensor> separate = inputs;
    for (at::Tensor &input : separate) {
        for (const at::Tensor &output : outputs) {
            if (input.defined() && output.defined())
                input = apart_from(input, output);
        }
    }
    const Parts sends = input_parts(launch, separate, dtype, element.scale);
    const Parts recvs = output_parts(launch, outputs, dtype, element.scale);
    check_count({launch.name(), "output", rank_}, outputs[rank_], inputs[rank_].numel());
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_alltoallv(comm, sends.data(), recvs.data(), element.dtype, call, request);
    });
    launch.results = outputs;
    return launch.finish(inputs);
}

/* ---------------------------------------------------------------- barrier */

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::barrier(const c10d::BarrierOptions &opts)
{
    Launch launch(*this, kBarrier, opts.timeout, opts.asyncOp);
    launch.issue([&](auto comm, auto call, auto request) { return quoit_barrier(comm, call, request); });
    return launch.finish({});
}

/* ---------------------------------------------------------------- sparse */

/*
 * The sum of sparse tensors: every rank gathers all ranks' indices and values and adds them itself, in rank order, so that the
 * bits are the same everywhere. Three steps that depend on each other, hence always blocking; the Work has ended when it is
 * returned.
 */
ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts)
{
    QUOIT_CHECK_VALUE(opts.reduceOp.op_ == c10d::ReduceOp::SUM, kAllReduceSparse.name, ": sparse tensors can only be summed");
    at::Tensor &tensor = only(kAllReduceSparse.name, tensors);
    TORCH_CHECK_NOT_IMPLEMENTED(!batch(), "quoit: ", kAllReduceSparse.name, ": its steps depend on each other, so that it cannot be coalesced: "
                                "call it outside of the coalescing");
    QUOIT_CHECK_VALUE(tensor.is_sparse() && tensor.device().is_cpu(), kAllReduceSparse.name, ": the tensor has layout ",
                      tensor.layout(), " on device ", tensor.device(), ", only torch.sparse_coo on the CPU is supported");
    /* Made first: the profiler takes its life for the operation's time. */
    auto work = c10::make_intrusive<QuoitWork>(rank_, kAllReduceSparse, sequence_.load(), tensors, tensors, Flight());
    at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor own = tensor.coalesce();

    c10d::AllgatherOptions gather;
    gather.timeout = opts.timeout;
    gather.asyncOp = false;
    Tensors count = {at::empty({1}, at::kLong)};
    count[0].fill_(own._nnz());
    TensorLists counts(1), indices(1), values(1);
    for (int r = 0; r < size_; r++)
        counts[0].push_back(at::empty({1}, at::kLong));
    allgather(counts, count, gather);

    std::vector<int64_t> value_sizes = own._values().sizes().vec();
    for (int r = 0; r < size_; r++) {
        const int64_t entries = counts[0][r].item<int64_t>();
        value_sizes[0] = entries;
        indices[0].push_back(at::empty({entries, own._indices().size(0)}, at::kLong));
        values[0].push_back(at::empty(value_sizes, own._values().options()));
    }
    Tensors own_indices = {own._indices().t().contiguous()}, own_values = {own._values()};
    allgather(indices, own_indices, gather);
    allgather(values, own_values, gather);

    const at::Tensor sum =
        at::sparse_coo_tensor(at::cat(indices[0]).t().contiguous(), at::cat(values[0]), tensor.sizes(), tensor.options()).coalesce();
    tensor.copy_(sum);
    work->poke(0);
    return work;
}

} // namespace quoit_torch
