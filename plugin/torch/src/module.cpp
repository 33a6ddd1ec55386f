/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python module quoit._C: the process group, its options, and what is asked of the library itself.
 */
#include <chrono>

#include <pybind11/chrono.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"
#include "errors.h"

namespace quoit_torch {
namespace {

using Milliseconds = std::chrono::milliseconds;
using OptionsPtr = c10::intrusive_ptr<ProcessGroupQuoit::Options>;

/** Call `body` so that its exceptions become those of PyTorch. */
template <class Body>
auto translated(Body &&body)
{
    HANDLE_TH_ERRORS
    return body();
    END_HANDLE_TH_ERRORS_PYBIND
}

c10::intrusive_ptr<ProcessGroupQuoit> create(const c10d::DistributedBackendOptions &backend, const py::object &options)
{
    return translated([&] {
        c10::intrusive_ptr<c10d::Backend::Options> given;
        if (!options.is_none()) {
            if (!py::isinstance<ProcessGroupQuoit::Options>(options))
                TORCH_CHECK_TYPE(false, "quoit: pg_options must be a quoit.Options, not ",
                                 py::str(py::type::of(options)).cast<std::string>());
            given = options.cast<OptionsPtr>();
        }
        return ProcessGroupQuoit::create(backend, given);
    });
}

OptionsPtr copy_options(const ProcessGroupQuoit::Options &options, const py::dict &)
{
    return c10::make_intrusive<ProcessGroupQuoit::Options>(options);
}

std::string settings()
{
    return translated([] {
        char *text = nullptr;
        check_call(quoit_settings_print(&text), "settings");
        return take_text(text);
    });
}

std::string process_history(int pid, bool json)
{
    return translated([&] {
        char *text = nullptr;
        check_call(quoit_process_history(pid, json ? QUOIT_FORMAT_JSON : QUOIT_FORMAT_TEXT, &text), "debug");
        return take_text(text);
    });
}

void trace_start(const std::string &path)
{
    translated([&] {
        WithoutGil nogil;
        check_call(quoit_trace_start(path.c_str()), "trace");
    });
}

void trace_stop()
{
    translated([] {
        WithoutGil nogil;
        check_call(quoit_trace_stop(), "trace");
    });
}

void trace_convert(const std::string &partial, const std::string &path)
{
    translated([&] { check_call(quoit_trace_convert(partial.c_str(), path.c_str()), "trace"); });
}

/** "bf16" and its like; None stands for the setting's. */
quoit_wire_t parse_wire(const std::optional<std::string> &name)
{
    if (!name)
        return QUOIT_WIRE_DEFAULT;
    std::string known;
    for (int wire = QUOIT_WIRE_NONE; wire < QUOIT_WIRE_COUNT; wire++) {
        if (*name == quoit_wire_name(static_cast<quoit_wire_t>(wire)))
            return static_cast<quoit_wire_t>(wire);
        known += std::string(known.empty() ? "" : ", ") + quoit_wire_name(static_cast<quoit_wire_t>(wire));
    }
    throw py::value_error("quoit: wire_dtype \"" + *name + "\" is not one of: " + known);
}

std::optional<std::string> wire_text(quoit_wire_t wire)
{
    return wire == QUOIT_WIRE_DEFAULT ? std::nullopt : std::optional<std::string>(quoit_wire_name(wire));
}

/** 0 for None. */
int checked_sockets(std::optional<int> sockets)
{
    constexpr int kMost = 16; /* of setting TCP_SOCKETS */
    if (sockets && (*sockets < 1 || *sockets > kMost))
        throw py::value_error("quoit: sockets=" + std::to_string(*sockets) + "; 1 to " + std::to_string(kMost) + " are possible");
    return sockets.value_or(0);
}

OptionsPtr make_options(std::optional<Milliseconds> timeout, const std::optional<std::string> &wire, std::optional<int> sockets)
{
    auto options = c10::make_intrusive<ProcessGroupQuoit::Options>(timeout);
    options->wire = parse_wire(wire);
    options->sockets = checked_sockets(sockets);
    return options;
}

void bind_options(py::module_ &module, const py::object &backend)
{
    const py::object base = backend.attr("Options");
    py::class_<ProcessGroupQuoit::Options, OptionsPtr>(module, "Options", base, "Options of a group: init_process_group(pg_options=...)")
        .def(py::init(&make_options), py::arg("timeout") = py::none(), py::arg("wire_dtype") = py::none(),
             py::arg("sockets") = py::none(),
             "timeout: limit of creating the group and of each operation; wire_dtype: what sums of floats are between hosts; "
             "sockets: TCP connections a pair of processes")
        .def_property(
            "wire_dtype", [](const ProcessGroupQuoit::Options &self) { return wire_text(self.wire); },
            [](ProcessGroupQuoit::Options &self, const std::optional<std::string> &name) { self.wire = parse_wire(name); })
        .def_property(
            "sockets", [](const ProcessGroupQuoit::Options &self) { return self.sockets ? std::optional<int>(self.sockets) : std::nullopt; },
            [](ProcessGroupQuoit::Options &self, std::optional<int> sockets) { self.sockets = checked_sockets(sockets); })
        .def_property(
            "timeout", [](const ProcessGroupQuoit::Options &self) { return self.timeout; },
            [](ProcessGroupQuoit::Options &self, Milliseconds timeout) {
                self.timeout = timeout;
                self.timeout_given = true;
            })
        .def("__copy__", [](const ProcessGroupQuoit::Options &self) { return copy_options(self, {}); })
        .def("__deepcopy__", copy_options, py::arg("memo"));
}

c10::intrusive_ptr<ProcessGroupQuoit> connect(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, Milliseconds timeout)
{
    return translated([&] { return ProcessGroupQuoit::connect(store, rank, size, timeout); });
}

void bind_backend(py::module_ &module, const py::object &backend)
{
    py::class_<ProcessGroupQuoit, c10::intrusive_ptr<ProcessGroupQuoit>>(module, "ProcessGroupQuoit", backend)
        .def(py::init(&connect), py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout") = Milliseconds(kBackendDefaultTimeout), "A group that torch.distributed does not know of; returns when all ranks have come.")
        .def_property_readonly("options", [](ProcessGroupQuoit &self) {
            return c10::static_intrusive_pointer_cast<ProcessGroupQuoit::Options>(self.getBackendOptions());
        })
        .def("describe", [](ProcessGroupQuoit &self, bool json) { return translated([&] { return self.describe(json); }); },
             py::arg("json") = false)
        .def("history", [](ProcessGroupQuoit &self, bool json) { return translated([&] { return self.history(json); }); },
             py::arg("json") = false)
        .def("_shrink",
             [](ProcessGroupQuoit &self, std::optional<Milliseconds> timeout) {
                 std::vector<int> members;
                 auto group = translated([&] { return self.survivors(timeout, members); });
                 return py::make_tuple(group, members);
             },
             py::arg("timeout") = py::none())
        .def("_allreduce_residual",
             [](ProcessGroupQuoit &self, at::Tensor tensor, at::Tensor residual) {
                 return translated([&] { return self.allreduceResidual(tensor, residual); });
             },
             py::arg("tensor"), py::arg("residual"))
        .def("last_error", [](ProcessGroupQuoit &self) { return translated([&] { return self.lastError(); }); })
        .def("get_error", [](ProcessGroupQuoit &self) { return translated([&] { return self.getError(); }); })
        .def(
            "gather_single",
            [](ProcessGroupQuoit &self, at::Tensor &output, at::Tensor &input, const c10d::GatherOptions &options) {
                return translated([&] { return self.gather_single(output, input, options); });
            },
            py::arg("output"), py::arg("input"), py::arg("opts") = c10d::GatherOptions(),
            "Gather one tensor a rank into one tensor on the root.")
        .def(
            "_add_ephemeral_timeout", [](ProcessGroupQuoit &self, Milliseconds timeout) { self.addEphemeralTimeout(timeout); },
            py::arg("timeout"), "Longer limits until the first operation begun after this has ended.")
        .def("_set_default_timeout",
             [](ProcessGroupQuoit &self, Milliseconds timeout) { return translated([&] { return self.setTimeout(timeout); }); })
        .def("perform_nocolor_split", [](ProcessGroupQuoit &, const py::object &) {}, "Nothing to do: non-members take no part.");
}

} // namespace
} // namespace quoit_torch

PYBIND11_MODULE(_C, module)
{
    using namespace quoit_torch;
    const py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
    bind_options(module, backend);
    bind_backend(module, backend);
    module.def("create", create, py::arg("backend"), py::arg("options"));
    module.def("shutdown_all", shutdown_all);
    module.def("set_futures_done", set_futures_done, py::arg("wanted"));
    module.def("library_version", [] { return std::string(quoit_version()); });
    module.def("settings", settings);
    module.def("process_history", process_history, py::arg("pid"), py::arg("json") = false);
    module.def("trace_start", trace_start, py::arg("path"));
    module.def("trace_stop", trace_stop);
    module.def("trace_convert", trace_convert, py::arg("partial"), py::arg("path"));
}
