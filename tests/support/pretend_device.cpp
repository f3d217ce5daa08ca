// A pretend accelerator: device "pretend" of torch's PrivateUse1 key. Its memory is the host's and its kernels are the
// CPU's, but torch takes it for another device, so what can't be mixed with CUDA can't be mixed with it.
// What a host waits for on CUDA, and each kernel, is reported to `listen`'s function.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/library.h>

#include <set>

namespace {

using at::Generator;
using at::Tensor;
using c10::Device;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::Storage;
using c10::StorageImpl;
constexpr auto PRETEND = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 2;

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::FakeGuardImpl<PRETEND>)

using Listener = void (*)(const char* kind, const char* name);
Listener listener = nullptr;
bool shares_numbers = false;

void report(const char* kind, const std::string& name) {
  if (listener != nullptr) listener(kind, name.c_str());
}

bool is_pretend(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == PRETEND; }

// -- memory: each storage of the device owns one of the host, as the context of its pointer

void release(void* host) { c10::intrusive_ptr<StorageImpl>::reclaim(static_cast<StorageImpl*>(host)); }

c10::DataPtr point_to(const Storage& host, Device device) {
  auto owner = c10::intrusive_ptr<StorageImpl>::reclaim_copy(host.unsafeGetStorageImpl());
  return {host.mutable_data(), owner.release(), &release, device};
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto host = c10::make_intrusive<StorageImpl>(
        StorageImpl::use_byte_size_t(), bytes, c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
    return point_to(Storage(std::move(host)), c10::impl::FakeGuardImpl<PRETEND>().getDevice());
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} allocator;
REGISTER_ALLOCATOR(PRETEND, &allocator)

Storage host_of(const Storage& storage) {
  auto* host = static_cast<StorageImpl*>(storage.data_ptr().get_context());
  return Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(host));
}

Storage device_of(const Storage& host, Device device) {
  return Storage(c10::Storage::use_byte_size_t(), host.nbytes(), point_to(host, device), &allocator,
                 /*resizable=*/true);
}

Tensor make(Storage storage, DispatchKey key, const Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

Tensor to_host(const Tensor& tensor) { return make(host_of(tensor.storage()), DispatchKey::CPU, tensor); }

// -- random numbers: each generator owns one of the host

struct PretendGenerator final : c10::GeneratorImpl {
  Generator host;
  PretendGenerator(c10::DeviceIndex index, Generator host)
      : GeneratorImpl(Device(PRETEND, index), DispatchKeySet(DispatchKey::PrivateUse1)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  PretendGenerator* clone_impl() const override { return new PretendGenerator(device().index(), host.clone()); }
};

Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<PretendGenerator>(std::max<c10::DeviceIndex>(index, 0), at::detail::createCPUGenerator());
}

Generator& default_generator(c10::DeviceIndex index) {
  static Generator generators[DEVICES] = {new_generator(0), new_generator(1)};
  return generators[std::max<c10::DeviceIndex>(index, 0)];
}

Generator host_of(const Generator& generator, Device device) {
  TORCH_CHECK(generator.device().type() == PRETEND, "Expected a '", device, "' generator but found '",
              generator.device(), "'");
  return generator.get<PretendGenerator>()->host;
}

// -- kernels: those of the host, on tensors that share the memory

// Their results have sizes that the host must know, or are read by it.
const std::set<std::string> WAITING = {
    "aten::_local_scalar_dense", "aten::_unique2", "aten::bincount", "aten::equal", "aten::masked_select",
    "aten::nonzero", "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim",
    "aten::unique_dim_consecutive"};

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {}

  void run() {
    const auto& arguments = op_.schema().arguments();
    const size_t start = stack_->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); i++) find_device((*stack_)[start + i]);
    TORCH_CHECK(device_, op_.schema().name(), " got nothing of the pretend device");
    for (size_t i = 0; i < arguments.size(); i++) {
      auto& value = (*stack_)[start + i];
      if (value.isNone() && arguments[i].type()->str() == "Generator?" && !shares_numbers) {
        value = default_generator(device_->index()).get<PretendGenerator>()->host;
      } else {
        value = to_host(value);
      }
    }
    report_kind();
    op_.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack_);
    for (auto& [tensor, host] : tensors_) follow_resize(tensor, host);
    const size_t results = op_.schema().returns().size();
    for (size_t i = stack_->size() - results; i < stack_->size(); i++) (*stack_)[i] = to_device((*stack_)[i]);
  }

 private:
  void find_device(const IValue& value) {
    if (value.isTensor()) note(value.toTensor());
    if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) note(tensor);
    if (value.isOptionalTensorList())
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) if (tensor) note(*tensor);
    if (value.isDevice() && value.toDevice().type() == PRETEND) note(value.toDevice());
  }

  void note(const Tensor& tensor) { if (is_pretend(tensor)) note(tensor.device()); }

  void note(Device device) {
    TORCH_CHECK(!device_ || *device_ == device, "Expected all tensors to be on the same device, but found at least two "
                "devices, ", *device_, " and ", device, "!");
    device_ = device;
  }

  IValue to_host(const IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor(), /*is_index=*/false);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(to_host(tensor, false));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional<Tensor>(to_host(*tensor, true)) : std::nullopt);
      return list;
    }
    if (value.isDevice()) return Device(c10::DeviceType::CPU);
    if (value.isGenerator()) return host_of(value.toGenerator(), *device_);
    return value;
  }

  Tensor to_host(const Tensor& tensor, bool is_index) {
    if (!tensor.defined()) return tensor;
    const auto& name = op_.schema().name();
    has_mask_ |= name == "aten::_index_put_impl_" && is_index && tensor.dtype() == at::kBool;
    if (!is_pretend(tensor)) {
      TORCH_CHECK(tensor.dim() == 0 || is_index, name, ": Expected all tensors to be on the same device, but found at "
                  "least two devices, ", *device_, " and ", tensor.device(), "!");
      if (name == "aten::_index_put_impl_") report("upload", name);  // `index` has moved its own before
      return tensor;
    }
    for (auto& [known, host] : tensors_) if (known.is_same(tensor)) return host;
    tensors_.emplace_back(tensor, ::to_host(tensor));
    return tensors_.back().second;
  }

  void report_kind() const {
    bool is_view = false;
    for (const auto& result : op_.schema().returns())
      is_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
    const auto& name = op_.schema().name();
    if (is_view || name == "aten::resize_") return;
    if (name != "aten::_local_scalar_dense") report("kernel", name);
    if (has_mask_ || WAITING.count(name) > 0) report("wait", name);
  }

  static void follow_resize(const Tensor& tensor, const Tensor& host) {
    if (tensor.sizes() != host.sizes() || tensor.strides() != host.strides())
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    auto& storage = *tensor.storage().unsafeGetStorageImpl();
    if (storage.data() != host.storage().data()) {
      storage.set_data_ptr_noswap(point_to(host.storage(), tensor.device()));
    }
    storage.set_nbytes(host.storage().nbytes());
  }

  IValue to_device(const IValue& value) const {
    if (value.isTensor()) return to_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(to_device(tensor));
    return list;
  }

  Tensor to_device(const Tensor& result) const {
    if (!result.defined()) return result;
    for (auto& [tensor, host] : tensors_) if (host.is_same(result)) return tensor;
    for (auto& [tensor, host] : tensors_)
      if (host.storage().is_alias_of(result.storage())) return make(tensor.storage(), DispatchKey::PrivateUse1, result);
    return make(device_of(result.storage(), *device_), DispatchKey::PrivateUse1, result);
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::optional<Device> device_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;  // of the device, and the same memory for the host
  bool has_mask_ = false;
};

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

// -- what has no boxed kernel of the host

Device resolve(std::optional<Device> device) {
  const auto current = c10::impl::FakeGuardImpl<PRETEND>().getDevice();
  const auto resolved = device && device->has_index() ? *device : current;
  TORCH_CHECK(resolved.index() < DEVICES, "there is no ", resolved);
  return resolved;
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool> is_pinned) {
  TORCH_CHECK(!is_pinned.value_or(false), "Only dense CPU tensors can be pinned");
  auto type = dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
  auto host = at::empty_strided(sizes, strides, at::TensorOptions().dtype(type).device(at::kCPU));
  return make(device_of(host.storage(), resolve(device)), DispatchKey::PrivateUse1, host);
}

Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool> is_pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!is_pinned.value_or(false), "Only dense CPU tensors can be pinned");
  auto type = dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
  auto host = at::empty(sizes, at::TensorOptions().dtype(type).device(at::kCPU), format);
  return make(device_of(host.storage(), resolve(device)), DispatchKey::PrivateUse1, host);
}

Tensor& copy(Tensor& self, const Tensor& source, bool) {
  const bool is_upload = !is_pretend(source), is_download = !is_pretend(self);
  report(is_upload ? "upload" : is_download ? "download" : "kernel", "aten::copy_");
  auto from = is_upload ? source : to_host(source);
  (is_download ? self : to_host(self)).copy_(from);
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& self, bool) {
  auto target = self;
  return copy(target, source, false);
}

// CUDA counts integers, too; the host counts floating-point numbers only.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  report("kernel", "aten::histc");
  auto counts = to_host(self).to(at::kDouble).histc(bins, min, max).to(self.scalar_type());
  return make(device_of(counts.storage(), self.device()), DispatchKey::PrivateUse1, counts);
}

Tensor convolve(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
                int64_t groups) {
  report("kernel", "aten::convolution");
  auto host_bias = bias && bias->defined() ? std::optional<Tensor>(to_host(*bias)) : std::nullopt;
  auto result = at::convolution(to_host(input), to_host(weight), host_bias, stride, padding, dilation, transposed,
                                output_padding, groups);
  return make(device_of(result.storage(), input.device()), DispatchKey::PrivateUse1, result);
}

int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return resolve(std::nullopt).index(); }
  const Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
} hooks;

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention)
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("copy_", TORCH_FN(copy));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(at::native::view)));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("set_.source_Storage", TORCH_FN(static_cast<Tensor& (*)(Tensor&, Storage)>(at::native::set_)));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("convolution_overrideable", TORCH_FN(convolve));
  library.impl("histc", TORCH_FN(histc));
  library.impl("multinomial", TORCH_FN(at::native::multinomial));  // as on CUDA, made of smaller kernels
}

TORCH_LIBRARY(pretend, library) {
  library.def("get_state(int device) -> Tensor", [](int64_t device) { return default_generator(device).get_state(); });
  library.def("set_state(int device, Tensor state) -> ()", [](int64_t device, const Tensor& state) {
    default_generator(device).set_state(state);
  });
}

extern "C" {
void register_hooks() { at::RegisterPrivateUse1HooksInterface(&hooks); }
void listen(Listener function) { listener = function; }
void share_numbers(bool shares) { shares_numbers = shares; }
void seed(c10::DeviceIndex device, uint64_t seed) { default_generator(device).set_current_seed(seed); }
}
