/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends, receives and the monitored barrier of the process group.
 */
#include "launch.h"
#include "monitored.h"

namespace quoit_torch {
namespace {

using c10d::OpType;

constexpr Operation kSend = {OpType::SEND, "send", "quoit:send"};
constexpr Operation kRecv = {OpType::RECV, "recv", "quoit:recv"};
constexpr Operation kRecvAny = {OpType::RECVANYSOURCE, "recv", "quoit:recvAnySource"};

const at::Tensor &checked(const Launch &launch, const std::vector<at::Tensor> &tensors, int tag)
{
    check_list(launch.name(), "tensors", tensors.size(), 1);
    check_tensor({launch.name(), "tensor"}, tensors[0]);
    QUOIT_CHECK_VALUE(tag >= 0, launch.name(), ": tag ", tag, " is negative");
    return tensors[0];
}

} // namespace

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::send(Tensors &tensors, int destination, int tag)
{
    Launch launch(*this, kSend, c10d::kUnsetTimeout, true);
    const at::Tensor &tensor = checked(launch, tensors, tag);
    QUOIT_CHECK_VALUE(destination >= 0 && destination < size_, launch.name(), ": rank ", destination, " is not in a group of ",
                      size_, " ranks");
    const Element element = element_to_move({launch.name(), "tensor"}, tensor);
    const size_t count = tensor.numel() * element.scale;
    const void *data = launch.input(tensor);
    launch.issue_late([=](auto comm, auto call, auto request) {
        return quoit_send(comm, data, count, element.dtype, destination, static_cast<uint32_t>(tag), call, request);
    });
    return launch.finish(tensors);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::recv(Tensors &tensors, int source, int tag)
{
    QUOIT_CHECK_VALUE(source >= 0 && source < size_, kRecv.name, ": rank ", source, " is not in a group of ", size_, " ranks");
    return receive(kRecv, tensors, source, tag);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::recvAnysource(Tensors &tensors, int tag)
{
    return receive(kRecvAny, tensors, QUOIT_ANY_SOURCE, tag);
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::receive(const Operation &operation, Tensors &tensors, int source, int tag)
{
    Launch launch(*this, operation, c10d::kUnsetTimeout, true);
    const at::Tensor &tensor = checked(launch, tensors, tag);
    const Place place = {launch.name(), "tensor"};
    const Element element = element_to_move(place, tensor);
    void *data = launch.output(place, tensor);
    launch.flight.source = Flight::kWanted;
    launch.issue([&](auto comm, auto call, auto request) {
        return quoit_recv(comm, data, tensor.numel() * element.scale, element.dtype, source, static_cast<uint32_t>(tag), call,
                          request);
    });
    launch.results = tensors;
    return launch.finish(tensors);
}

void ProcessGroupQuoit::monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all_ranks)
{
    WithoutGil nogil;
    const c10::intrusive_ptr<Communicator> comm = communicator();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!monitored_)
            monitored_ = std::make_unique<MonitoredBarrier>(comm, rank_, size_);
    }
    monitored_->run(opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout, wait_all_ranks);
}

} // namespace quoit_torch
