// Operators by name, for programs that are read from a file.
//
// A call is prepared once: the operator's schema is looked up, and every argument that the
// program fixes (strides, flags, types) is checked against its type there. What differs from
// call to call, tensors and numbers, has a place that is filled when the call is run. The call
// goes through the dispatcher as any other one: autograd, autocast and random scopes see it.
#include "shim.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Scalar.h>
#include <ATen/ScalarOps.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using c10::IValue;
using c10::TypeKind;

// Kind of an argument's value; the numbers match `src/torch/ffi/operators.rs`.
enum Given : int {
  NONE = 0,
  TENSOR = 1,   // a place
  TENSORS = 2,  // places; where `flags` is 0 there is none
  NUMBER = 3,   // a place
  NUMBERS = 4,  // places where `flags` is 1, else `ints`
  INT = 5,
  FLOAT = 6,
  BOOL = 7,
  TEXT = 8,
  INTS = 9,
  FLOATS = 10,
  BOOLS = 11,
  DEVICE = 12,
};

// A number that is known when a call is run.
struct Number {
  int64_t kind;  // 0 an integer, 1 a float, 2 a boolean
  int64_t integer;
  double real;
};

// An argument that is filled when a call is run.
struct Place {
  size_t argument;
  Given given;
  std::vector<int64_t> ints;
  std::vector<uint8_t> flags;
};

struct Argument {
  int given;
  const int64_t* ints;
  const double* floats;
  const uint8_t* flags;
  int64_t count;
  const char* text;
};

c10::TypePtr without_optional(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType();
  }
  return type;
}

// A tensor that is made of a number takes part in type promotion as the number does.
at::Tensor wrapped(const c10::Scalar& scalar) {
  auto tensor = c10::scalar_to_tensor(scalar);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

struct Call {
  explicit Call(c10::OperatorHandle op) : op(std::move(op)) {
    const auto& schema = this->op.schema();
    for (const auto& argument : schema.arguments()) {
      given.push_back(argument.default_value().has_value());
      arguments.push_back(argument.default_value().value_or(IValue()));
    }
  }

  [[noreturn]] void refuse(size_t index, const char* what) const {
    const auto& argument = op.schema().arguments()[index];
    TORCH_CHECK(false, "the argument `", argument.name(), "` of ", op.schema().name(), " is ",
                argument.type()->repr_str(), ", but the file gives ", what);
  }

  IValue number(size_t index, const c10::TypePtr& type, const Number& number) const {
    auto scalar = number.kind == 0   ? c10::Scalar(number.integer)
                  : number.kind == 1 ? c10::Scalar(number.real)
                                     : c10::Scalar(number.integer != 0);
    switch (type->kind()) {
      case TypeKind::TensorType:
        return wrapped(scalar);
      case TypeKind::NumberType:
        return IValue(scalar);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        if (number.kind != 1) {
          return IValue(number.integer);
        }
        break;
      case TypeKind::FloatType:
      case TypeKind::SymFloatType:
        return IValue(number.kind == 1 ? number.real : static_cast<double>(number.integer));
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        if (number.kind == 2) {
          return IValue(number.integer != 0);
        }
        break;
      case TypeKind::ListType: {
        // A number for a list of fixed length, such as a stride.
        auto element = type->expectRef<c10::ListType>().getElementType()->kind();
        auto length = op.schema().arguments()[index].N().value_or(1);
        auto ints = element == TypeKind::IntType || element == TypeKind::SymIntType;
        if (ints && number.kind == 0 && length >= 1 && length <= 8) {
          return IValue(std::vector<int64_t>(static_cast<size_t>(length), number.integer));
        }
        break;
      }
      default:
        break;
    }
    refuse(index, "a number");
  }

  IValue list(size_t index, const c10::TypePtr& type, const Argument& argument) const {
    auto count = static_cast<size_t>(argument.count);
    if (type->kind() == TypeKind::ListType) {
      auto element = type->expectRef<c10::ListType>().getElementType()->kind();
      switch (element) {
        case TypeKind::IntType:
        case TypeKind::SymIntType:
          if (count == 0 || argument.given == INTS) {
            return IValue(std::vector<int64_t>(argument.ints, argument.ints + count));
          }
          break;
        case TypeKind::FloatType:
          if (argument.given == INTS) {
            return IValue(std::vector<double>(argument.ints, argument.ints + count));
          }
          if (count == 0 || argument.given == FLOATS) {
            return IValue(std::vector<double>(argument.floats, argument.floats + count));
          }
          break;
        case TypeKind::BoolType:
          if (count == 0 || argument.given == BOOLS) {
            c10::List<bool> out;
            for (size_t i = 0; i < count; ++i) {
              out.push_back(argument.flags[i] != 0);
            }
            return IValue(out);
          }
          break;
        case TypeKind::TensorType:
          if (count == 0) {
            return IValue(c10::List<at::Tensor>());
          }
          break;
        default:
          break;
      }
    }
    refuse(index, "a list of numbers");
  }

  bool takes_tensors(const c10::TypePtr& type, const Argument& argument) const {
    if (type->kind() != TypeKind::ListType) {
      return false;
    }
    auto element = type->expectRef<c10::ListType>().getElementType();
    if (element->kind() == TypeKind::TensorType) {
      for (int64_t i = 0; i < argument.count; ++i) {
        if (argument.flags[i] == 0) {
          return false;
        }
      }
      return true;
    }
    return without_optional(element)->kind() == TypeKind::TensorType;
  }

  bool takes_numbers(const c10::TypePtr& type) const {
    if (type->kind() != TypeKind::ListType) {
      return false;
    }
    auto element = type->expectRef<c10::ListType>().getElementType()->kind();
    return element == TypeKind::IntType || element == TypeKind::SymIntType;
  }

  void place(size_t index, const Argument& argument) {
    Place place{index, static_cast<Given>(argument.given), {}, {}};
    if (argument.ints != nullptr) {
      place.ints.assign(argument.ints, argument.ints + argument.count);
    }
    if (argument.flags != nullptr) {
      place.flags.assign(argument.flags, argument.flags + argument.count);
    }
    places.push_back(std::move(place));
  }

  void set(const char* name, const Argument& argument) {
    const auto& schema = op.schema();
    auto found = schema.argumentIndexWithName(name);
    TORCH_CHECK(found.has_value(), schema.name(), " has no argument `", name, "`");
    auto index = static_cast<size_t>(*found);
    auto given_type = schema.arguments()[index].type();
    auto type = without_optional(given_type);
    given[index] = true;
    switch (argument.given) {
      case NONE:
        if (given_type->kind() != TypeKind::OptionalType) {
          refuse(index, "nothing");
        }
        arguments[index] = IValue();
        return;
      case TENSOR:
        if (type->kind() != TypeKind::TensorType) {
          refuse(index, "a tensor");
        }
        place(index, argument);
        return;
      case TENSORS:
        if (!takes_tensors(type, argument)) {
          refuse(index, "a list of tensors");
        }
        place(index, argument);
        return;
      case NUMBER:
        number(index, type, Number{0, 0, 0});
        place(index, argument);
        return;
      case NUMBERS:
        if (!takes_numbers(type)) {
          refuse(index, "a list of sizes");
        }
        place(index, argument);
        return;
      case INT:
        arguments[index] = number(index, type, Number{0, argument.ints[0], 0});
        return;
      case FLOAT:
        arguments[index] = number(index, type, Number{1, 0, argument.floats[0]});
        return;
      case BOOL:
        arguments[index] = number(index, type, Number{2, argument.ints[0], 0});
        return;
      case TEXT:
        if (type->kind() != TypeKind::StringType) {
          refuse(index, "a text");
        }
        arguments[index] = IValue(std::string(argument.text));
        return;
      case DEVICE:
        if (type->kind() != TypeKind::DeviceObjType) {
          refuse(index, "a device");
        }
        arguments[index] = IValue(c10::Device(argument.text));
        return;
      default:
        arguments[index] = list(index, type, argument);
    }
  }

  void ready() const {
    for (size_t i = 0; i < given.size(); ++i) {
      TORCH_CHECK(given[i], op.schema().name(), " needs the argument `",
                  op.schema().arguments()[i].name(), "`, which the file does not give");
    }
  }

  torch::jit::Stack filled(at::Tensor** tensors, int64_t tensor_count, const Number* numbers,
                           int64_t number_count) const {
    torch::jit::Stack stack(arguments);
    int64_t tensor = 0;
    int64_t own_number = 0;
    auto next_tensor = [&] {
      TORCH_CHECK(tensor < tensor_count, "a tensor is missing");
      return *tensors[tensor++];
    };
    auto next_number = [&] {
      TORCH_CHECK(own_number < number_count, "a number is missing");
      return numbers[own_number++];
    };
    for (const auto& place : places) {
      auto& value = stack[place.argument];
      auto type = without_optional(op.schema().arguments()[place.argument].type());
      switch (place.given) {
        case TENSOR:
          value = IValue(next_tensor());
          break;
        case NUMBER:
          value = number(place.argument, type, next_number());
          break;
        case TENSORS: {
          auto element = type->expectRef<c10::ListType>().getElementType();
          if (element->kind() == TypeKind::TensorType) {
            c10::List<at::Tensor> list;
            for (size_t i = 0; i < place.flags.size(); ++i) {
              list.push_back(next_tensor());
            }
            value = IValue(std::move(list));
          } else {
            c10::List<std::optional<at::Tensor>> list;
            for (auto flag : place.flags) {
              list.push_back(flag != 0 ? std::optional<at::Tensor>(next_tensor()) : std::nullopt);
            }
            value = IValue(std::move(list));
          }
          break;
        }
        default: {
          std::vector<int64_t> ints(place.ints);
          for (size_t i = 0; i < ints.size(); ++i) {
            if (place.flags[i] != 0) {
              auto given = next_number();
              TORCH_CHECK(given.kind == 0, "a size is no integer");
              ints[i] = given.integer;
            }
          }
          value = IValue(std::move(ints));
        }
      }
    }
    return stack;
  }

  c10::OperatorHandle op;
  std::vector<IValue> arguments;
  std::vector<bool> given;
  std::vector<Place> places;
};

void flatten(const IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      out.push_back(tensor);
    }
  } else if (value.isNone()) {
    out.emplace_back();
  } else {
    TORCH_CHECK(false, "it returns ", value.tagKind(), ", which is no tensor");
  }
}

}  // namespace

// Looks an operator up by its name (`aten::add`) and overload.
GP_API int gp_operator_open(const char* name, const char* overload, Call** out) {
  return gpipe::guarded([&] {
    auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    TORCH_CHECK(op.has_value(), "libtorch has no operator `", name, ".",
                *overload == 0 ? "default" : overload, "`");
    *out = new Call(*op);
  });
}

GP_API void gp_operator_close(Call* call) {
  gpipe::guarded([&] { delete call; });
}

// Sets an argument; places are filled at the run in the order of these calls.
GP_API int gp_operator_set(Call* call, const char* name, const Argument* argument) {
  return gpipe::guarded([&] { call->set(name, *argument); });
}

// Checks that all arguments without a default are set.
GP_API int gp_operator_ready(const Call* call) {
  return gpipe::guarded([&] { call->ready(); });
}

// `out` gets as many new tensors as `out_count` says, null where there is none.
GP_API int gp_operator_run(const Call* call, at::Tensor** tensors, int64_t tensor_count,
                           const Number* numbers, int64_t number_count, at::Tensor** out,
                           int64_t out_count) {
  return gpipe::guarded([&] {
    auto stack = call->filled(tensors, tensor_count, numbers, number_count);
    call->op.callBoxed(&stack);
    std::vector<at::Tensor> results;
    for (const auto& value : stack) {
      flatten(value, results);
    }
    // An operator that changes its argument in place may be called for that alone.
    TORCH_CHECK(out_count == 0 || static_cast<int64_t>(results.size()) == out_count,
                "it returns ", results.size(), " tensor(s), but the file has ", out_count);
    std::vector<std::unique_ptr<at::Tensor>> made;
    for (int64_t i = 0; i < out_count; ++i) {
      auto& result = results[static_cast<size_t>(i)];
      made.push_back(result.defined() ? std::make_unique<at::Tensor>(std::move(result)) : nullptr);
    }
    for (int64_t i = 0; i < out_count; ++i) {
      out[i] = made[static_cast<size_t>(i)].release();
    }
  });
}
