//! Operators by name: looked up and checked once, run often (see `shim/operators.cpp`).

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use tch::{Device, Tensor};

use super::{Result, TensorPtr, check, lend, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_operator_open(
        name: *const c_char,
        overload: *const c_char,
        out: *mut *mut c_void,
    ) -> c_int;
    fn gp_operator_close(call: *mut c_void);
    fn gp_operator_set(call: *mut c_void, name: *const c_char, argument: *const Argument) -> c_int;
    fn gp_operator_ready(call: *const c_void) -> c_int;
    fn gp_operator_run(
        call: *const c_void,
        tensors: *mut TensorPtr,
        tensor_count: i64,
        numbers: *const NumberValue,
        number_count: i64,
        out: *mut TensorPtr,
        out_count: i64,
    ) -> c_int;
}

/// Value of an operator's argument, or a place for it.
#[derive(Debug, Clone, Copy)]
pub enum Given<'a> {
    /// The value `None`.
    None,
    /// A tensor, given at the run.
    Tensor,
    /// Tensors, given at the run; `false` for absent ones.
    Tensors(&'a [bool]),
    /// A number, given at the run.
    Number,
    /// Integers, some of which (`None`) are given at the run.
    Numbers(&'a [Option<i64>]),
    /// An integer; also an element type, a layout, a memory format.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(&'a str),
    /// Integers.
    Ints(&'a [i64]),
    /// Floating-point numbers.
    Floats(&'a [f64]),
    /// Booleans.
    Bools(&'a [bool]),
    /// A device.
    Device(Device),
}

/// A number given when an operator is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

#[repr(C)]
struct Argument {
    given: c_int,
    ints: *const i64,
    floats: *const f64,
    flags: *const u8,
    count: i64,
    text: *const c_char,
}

#[repr(C)]
struct NumberValue {
    kind: i64,
    integer: i64,
    real: f64,
}

/// An operator with its constant arguments.
#[derive(Debug)]
pub struct Operator {
    pointer: NonNull<c_void>,
}

impl Operator {
    /// Looks up the operator with this name (`aten::add`) and overload (empty if none).
    ///
    /// # Errors
    /// libtorch has no such operator.
    pub fn open(name: &str, overload: &str) -> Result<Self> {
        let (name, overload) = (text(name)?, text(overload)?);
        let mut out = ptr::null_mut();
        // SAFETY: two texts that end with NUL and outlive the call; `out` holds an owned call
        // after a successful one.
        check(unsafe { gp_operator_open(name.as_ptr(), overload.as_ptr(), &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no operator"))?;
        Ok(Self { pointer })
    }

    /// Sets the argument `name`. Values given at the run are ordered by these calls.
    ///
    /// # Errors
    /// There is no such argument, or it is of another type.
    pub fn set(&mut self, name: &str, given: Given<'_>) -> Result<()> {
        let name = text(name)?;
        let argument = Parts::of(given)?;
        let raw = argument.raw();
        // SAFETY: the call is owned by `self`; the name and all that `raw` points to live in
        // this function, and are copied.
        check(unsafe { gp_operator_set(self.pointer.as_ptr(), name.as_ptr(), &raw const raw) })
    }

    /// Checks that all required arguments are set.
    ///
    /// # Errors
    /// One is missing.
    pub fn ready(&self) -> Result<()> {
        // SAFETY: the call is owned by `self`.
        check(unsafe { gp_operator_ready(self.pointer.as_ptr()) })
    }

    /// Runs the operator with the values of its places, in order. *Returns* `count` tensors, with
    /// lists flattened.
    ///
    /// # Errors
    /// libtorch reports an error, or returns another number of tensors (with a `count` of 0 any
    /// number is accepted).
    pub fn run(
        &self,
        tensors: &[&Tensor],
        numbers: &[Number],
        count: usize,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut tensors: Vec<TensorPtr> = tensors.iter().map(|tensor| lend(tensor)).collect();
        let numbers: Vec<NumberValue> = numbers.iter().map(|number| number.value()).collect();
        let mut out: Vec<TensorPtr> = vec![ptr::null_mut(); count];
        // SAFETY: lent tensors and numbers that outlive the call, and room for `count` pointers.
        check(unsafe {
            gp_operator_run(
                self.pointer.as_ptr(),
                tensors.as_mut_ptr(),
                tensors.len() as i64,
                numbers.as_ptr(),
                numbers.len() as i64,
                out.as_mut_ptr(),
                count as i64,
            )
        })?;
        // SAFETY: after a successful call each is null or new and owned by nobody.
        Ok(out.into_iter().map(|out| unsafe { own(out) }).collect())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_operator_close(self.pointer.as_ptr()) }
    }
}

impl Number {
    fn value(self) -> NumberValue {
        let (kind, integer, real) = match self {
            Self::Int(integer) => (0, integer, 0.0),
            Self::Float(real) => (1, 0, real),
            Self::Bool(flag) => (2, i64::from(flag), 0.0),
        };
        NumberValue {
            kind,
            integer,
            real,
        }
    }
}

/// Parts of an argument, lent to the shim.
#[derive(Default)]
struct Parts {
    given: c_int,
    ints: Vec<i64>,
    floats: Vec<f64>,
    flags: Vec<u8>,
    count: usize,
    text: CString,
}

impl Parts {
    fn of(given: Given<'_>) -> Result<Self> {
        let bytes = |flags: &[bool]| flags.iter().map(|flag| u8::from(*flag)).collect();
        let mut parts = Self {
            given: given.tag(),
            ..Self::default()
        };
        match given {
            Given::None | Given::Tensor | Given::Number => {}
            Given::Tensors(flags) | Given::Bools(flags) => parts.flags = bytes(flags),
            Given::Numbers(numbers) => {
                parts.ints = numbers.iter().map(|own| own.unwrap_or(0)).collect();
                let open = numbers.iter().map(|own| u8::from(own.is_none()));
                parts.flags = open.collect();
            }
            Given::Int(number) => parts.ints = vec![number],
            Given::Bool(flag) => parts.ints = vec![i64::from(flag)],
            Given::Float(number) => parts.floats = vec![number],
            Given::Ints(numbers) => parts.ints = numbers.to_vec(),
            Given::Floats(numbers) => parts.floats = numbers.to_vec(),
            Given::Text(own) => parts.text = text(own)?,
            Given::Device(Device::Cpu) => parts.text = text("cpu")?,
            Given::Device(Device::Cuda(index)) => parts.text = text(&format!("cuda:{index}"))?,
            Given::Device(other) => {
                return Err(TorchError::new(format!("no stage runs on {other:?}")));
            }
        }
        parts.count = (parts.ints.len())
            .max(parts.floats.len())
            .max(parts.flags.len());
        Ok(parts)
    }

    /// Lists without elements are null.
    fn raw(&self) -> Argument {
        fn list<T>(all: &[T]) -> *const T {
            if all.is_empty() {
                return ptr::null();
            }
            all.as_ptr()
        }
        Argument {
            given: self.given,
            ints: list(&self.ints),
            floats: list(&self.floats),
            flags: list(&self.flags),
            count: self.count as i64,
            text: self.text.as_ptr(),
        }
    }
}

impl Given<'_> {
    /// As in `shim/operators.cpp`.
    fn tag(self) -> c_int {
        match self {
            Self::None => 0,
            Self::Tensor => 1,
            Self::Tensors(_) => 2,
            Self::Number => 3,
            Self::Numbers(_) => 4,
            Self::Int(_) => 5,
            Self::Float(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Ints(_) => 9,
            Self::Floats(_) => 10,
            Self::Bools(_) => 11,
            Self::Device(_) => 12,
        }
    }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| TorchError::new("a text has a NUL in it"))
}
